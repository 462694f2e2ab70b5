//! A loop of an application that looks once a second, and cancels what is due in batches with SKIP LOCKED.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;

use super::Peer;
use super::worker::{Worker, ours};
use crate::checkout::Scheme;
use crate::shop::Shop;

const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Poller(Worker);

impl Peer for Poller {
    fn name(&self) -> &'static str {
        "poller, each second"
    }

    fn version(&self) -> String {
        "a Rust program of this benchmark, SKIP LOCKED, batches of 1000".into()
    }

    fn start(&mut self, shop: &mut Shop) {
        self.0.start(ours("poller"), shop);
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.0.stop();
    }

    fn pids(&mut self) -> Vec<i32> {
        vec![self.0.pid()]
    }

    fn scheme(&self) -> Scheme {
        Scheme::indexed()
    }
}

/// The worker's program.
pub fn work(mut client: Client) {
    println!("ready");
    loop {
        client.batch_execute("CALL drain_by_batch(1000, false)").expect("a look");
        thread::sleep(INTERVAL);
    }
}
