//! A role with nothing but a schema of its own, and what CREATE EXTENSION gives to everybody, tries to run
//! code as somebody else, or to see or change what is another owner's.

mod code;
mod data;
mod den;
mod sessions;
mod times;
