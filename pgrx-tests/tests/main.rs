//! All tests, as one binary: a module here is a file beside this one.

mod harness;
mod rules;
