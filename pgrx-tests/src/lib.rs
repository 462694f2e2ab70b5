//! The harness: private PostgreSQL servers that have pg_expiry, and what tests ask of them.
//!
//! `make test` builds the extension into a server tree of its own and names it in
//! `PG_EXPIRY_SERVER`; without that, `target/pg/15/test` is used. Nothing outside that tree and
//! one run folder under the temporary directory is touched, and no process outlives the tests.
//!
//! - [`Shop`] is where most tests begin: the common set-up of orders and stock in a database
//!   of its own on the [`shared_cluster`].
//! - [`Db`] is such a database without tables; [`Cluster`] a server for one test alone, to
//!   configure, kill and restart.
//! - [`wait_until`] is the one way to wait; [`Listener`] a client that LISTENs.

mod cluster;
mod database;
mod debug_point;
mod error;
mod installation;
mod listener;
mod process;
pub mod repository;
mod run;
mod shop;
mod wait;

pub use cluster::{Cluster, ClusterBuilder, Mode, shared_cluster};
pub use database::{Db, Endpoint, Notices};
pub use debug_point::DebugPoint;
pub use error::{db_error, sqlstate};
pub use installation::Installation;
pub use listener::{Heard, Listener};
pub use process::{Worker, cpu_time, launcher_pid, rss_anon_kb, signal, worker_pids, workers};
pub use run::{scratch_folder, scratch_path, temporary_directory};
pub use rustix::process::Signal;
pub use shop::Shop;
pub use wait::{Probe, eventually, wait_for_value, wait_until};

pub use postgres;
pub use serde_json;
