//! DDL on what a policy watches (R22): the policy goes on, stops with a reason, or goes with its table; no row
//! loses an attempt by it, no other policy is late, and the worker stays.

mod changes;
mod common;
mod locks;
mod under_way;
