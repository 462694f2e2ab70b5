//! Reading events: waiting for them, and named consumers whose place the server keeps.

mod consumer;
mod wait;
