//! All tests, as one binary: a module here is a file beside this one.

mod backlog_faults;
mod by_hand;
mod claims;
mod consumers;
mod contention;
mod crash_grid;
mod deadline_index;
mod deadlines;
mod event_order;
mod event_wait;
mod events;
mod exactly_once;
mod failover;
mod harness;
mod payment_race;
mod policies;
mod policy_errors;
mod processes;
mod punctual;
mod push;
mod retention;
mod rights;
mod rules;
mod smoke;
mod stuck_listener;
mod tenants;
