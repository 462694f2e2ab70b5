//! All tests, as one binary: a module here is a file beside this one.

mod by_hand;
mod claims;
mod contention;
mod deadlines;
mod harness;
mod punctual;
mod rules;
