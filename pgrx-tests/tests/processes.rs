//! Launcher and workers: who runs when, what ends them, and that nobody is in their way.

mod attention;
mod common;
mod databases;
mod life;
mod owners;
mod read_only;
mod turns;
