//! The only folder with `unsafe`: PostgreSQL's C interface, wrapped so that the rest of the crate
//! can be read as plain Rust. Nothing in here knows what a policy is.
//!
//! PostgreSQL errors travel through Rust as panics (pgrx). Code that must go on after one uses
//! [`xact::subtransaction`], [`xact::in_transaction`] or [`xact::surviving`], which roll back; nothing
//! else catches.

pub mod array;
pub mod asides;
pub mod before_commit;
pub mod bells;
pub mod bgworker;
pub mod call;
pub mod catalog;
pub mod caught;
pub mod clock;
pub mod database;
pub mod debug_point;
mod extension;
pub mod guc;
pub mod guest;
pub mod hooks;
pub mod inval;
pub mod json;
pub mod latch;
pub mod lock;
pub mod log;
pub mod news;
pub mod notify;
pub mod predicate;
pub mod preload;
pub mod role;
pub mod row_lock;
pub mod setting_hooks;
pub mod shmem;
pub mod spi;
pub mod timeout;
pub mod utility;
pub mod wake;
pub mod xact;
