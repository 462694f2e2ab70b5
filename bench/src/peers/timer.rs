//! A process that has all deadlines in memory, sleeps to the next one and calls the function for the order. A
//! restart reads them from the table again; between two restarts it must be told of each order.

use std::collections::BTreeSet;
use std::io::stdin;
use std::ops::Range;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use pg_expiry_tests::postgres::Client;

use super::Peer;
use super::worker::{Worker, ours};
use crate::checkout::Scheme;
use crate::shop::Shop;

#[derive(Default)]
pub struct Timer {
    worker: Worker,
    is_on: bool,
}

impl Peer for Timer {
    fn name(&self) -> &'static str {
        "timer in memory"
    }

    fn version(&self) -> String {
        "a Rust program of this benchmark".into()
    }

    fn learn(&mut self, shop: &mut Shop, orders: Range<i64>) {
        if !self.is_on {
            return; // It reads the table when it starts.
        }
        let sql = "SELECT id::text || ' ' || (extract(epoch FROM pay_by) * 1000000)::bigint::text
                   FROM orders WHERE id >= $1 AND id < $2 ORDER BY pay_by";
        let rows = shop.client.query(sql, &[&orders.start, &orders.end]).expect("orders");
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        self.worker.say(&(lines.join("\n") + "\n"));
    }

    fn start(&mut self, shop: &mut Shop) {
        self.worker.start(ours("timer"), shop);
        self.is_on = true;
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.worker.stop();
        self.is_on = false;
    }

    fn pids(&mut self) -> Vec<i32> {
        vec![self.worker.pid()]
    }

    fn scheme(&self) -> Scheme {
        Scheme::bare()
    }
}

/// The worker's program: all that are pending now, and then what comes in as lines of id and deadline.
pub fn work(mut client: Client) {
    let deadlines = Mutex::new(BTreeSet::<(SystemTime, i64)>::new());
    let is_new = Condvar::new();
    let pending = "SELECT pay_by, id FROM orders WHERE status = 'pending'";
    for row in client.query(pending, &[]).expect("orders") {
        deadlines.lock().expect("deadlines").insert((row.get(0), row.get(1)));
    }
    let cancel = client.prepare("SELECT cancel_order($1)").expect("the function");
    println!("ready");
    thread::scope(|scope| {
        scope.spawn(|| {
            for line in stdin().lines().map_while(Result::ok) {
                let (id, deadline) = line.split_once(' ').expect("id and deadline");
                let since_epoch = Duration::from_micros(deadline.parse().expect("microseconds"));
                let deadline = (SystemTime::UNIX_EPOCH + since_epoch, id.parse().expect("an id"));
                deadlines.lock().expect("deadlines").insert(deadline);
                is_new.notify_one();
            }
        });
        let mut waiting = deadlines.lock().expect("deadlines");
        loop {
            let now = SystemTime::now();
            match waiting.first().copied() {
                Some((deadline, id)) if deadline <= now => {
                    waiting.pop_first();
                    drop(waiting);
                    client.execute(&cancel, &[&id]).expect("a cancellation");
                    waiting = deadlines.lock().expect("deadlines");
                }
                Some((deadline, _)) => {
                    let left = deadline.duration_since(now).expect("a later time");
                    waiting = is_new.wait_timeout(waiting, left).expect("deadlines").0;
                }
                None => waiting = is_new.wait(waiting).expect("deadlines"),
            }
        }
    });
}
