//! Pure decisions: no PostgreSQL, no clock, no I/O. pgrx-tests compiles this folder by itself and tests
//! its properties.

pub mod deadline;
pub mod launcher;
pub mod names;
pub mod throttle;
pub mod turns;
