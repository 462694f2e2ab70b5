//! Pure decisions: no PostgreSQL, no clock, no I/O. pgrx-tests compiles this folder by itself and tests
//! its properties. Times are microseconds.

pub mod alert;
pub mod backoff;
pub mod batch_size;
pub mod deadline;
pub mod fault;
pub mod lateness;
pub mod launcher;
pub mod names;
pub mod patience;
pub mod payload;
pub mod queue;
pub mod reminder;
pub mod signature;
pub mod spell;
pub mod sweep;
pub mod throttle;
pub mod trip;
pub mod turns;
pub mod version;
