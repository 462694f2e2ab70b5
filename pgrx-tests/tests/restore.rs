//! Databases that come out of a dump, a clone or a copy of the whole server.

mod backup;
mod clones;
mod dump;
mod dump_of_all;
pub mod original;
