//! Pure decisions: no PostgreSQL, no clock, no I/O. pgrx-tests compiles this folder by itself and tests
//! its properties.

pub mod deadline;
