//! The pure decisions of the extension, compiled by themselves: their properties, and the deadline rules
//! also against a server's own arithmetic.

#[allow(dead_code)]
#[path = "../../src/rules/mod.rs"]
mod decisions;

mod backoff;
mod batch_size;
mod deadline;
mod payload;
mod queue;
mod small;
