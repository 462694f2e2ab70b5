//! Launcher and workers: who runs when, what ends them, and that nobody is in their way.

mod attention;
pub mod common;
mod databases;
mod life;
mod owners;
mod read_only;
pub mod turns;

pub use turns::{occupy_a_slot, vacate_the_slot};
