//! The worker.

pub mod batch;
pub mod cancel;
pub mod cycle;
pub mod duty;
pub mod event;
pub mod failure;
pub mod index;
pub mod progress;
pub mod run;
pub mod settle;
pub mod statements;
pub mod waiting;
