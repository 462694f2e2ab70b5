//! A server besides PostgreSQL, in a folder of its own, with its own sockets and ports; ends with us.

use std::fmt::Debug;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pg_expiry_tests::{Signal, signal, wait_until};

use super::worker::{descendants, dying_with_us};

pub struct Server(Child);

impl Server {
    pub fn start(program: Command) -> Server {
        let mut command = dying_with_us(program);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Server(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Tries until it answers; panics when it has ended.
    pub fn wait_until<T, E: Debug>(&mut self, what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
        wait_until(what, Duration::MAX, || {
            self.pids();
            attempt()
        })
    }

    /// It and what it has started; panics when it has ended.
    pub fn pids(&mut self) -> Vec<i32> {
        if let Some(status) = self.0.try_wait().expect("a server") {
            panic!("a server ended by itself: {status}");
        }
        descendants(self.0.id().cast_signed())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // Nothing that it holds is needed any more.
            descendants(self.0.id().cast_signed()).into_iter().for_each(|pid| signal(pid, Signal::KILL));
        }
        let _ = self.0.wait();
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("a port").port()
}
