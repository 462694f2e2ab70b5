//! All tests, as one binary: a module here is a file beside this one.

mod backlog_faults;
mod by_hand;
mod checkout;
mod claims;
mod contention;
mod crash_grid;
mod deadline_index;
mod deadlines;
mod failing_rows;
mod failover;
mod harness;
mod memory;
mod payment_race;
mod policies;
mod policy_errors;
mod processes;
mod punctual;
mod recovery;
mod renames;
mod restore;
mod rights;
mod rules;
mod session_state;
mod settings;
mod smoke;
mod status;
