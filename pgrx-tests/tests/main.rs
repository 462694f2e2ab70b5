//! All tests, as one binary: a module here is a file beside this one.

mod by_hand;
mod harness;
mod processes;
mod rules;
