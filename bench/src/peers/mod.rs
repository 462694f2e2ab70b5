//! What people use instead, each set up as its manual recommends and told about the same orders.
//!
//! Those that look at intervals do so once a second, pg_cron 1.4 once a minute, which is all that it can.

mod amqp;
mod graphile;
mod pg_boss;
mod pg_cron;
mod pg_expiry;
mod poller;
mod procrastinate;
mod rabbitmq;
mod redis;
mod server;
mod timer;
mod worker;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkout::Scheme;
use crate::shop::Shop;

pub use worker::{descendants, work};

/// Something that cancels orders at their deadlines.
pub trait Peer {
    fn name(&self) -> &'static str;

    /// Of the programs that it is made of, as they say it.
    fn version(&self) -> String;

    /// Once for the shop.
    fn set_up(&mut self, _shop: &mut Shop) {}

    /// Is told about orders with these ids, which are pending, in the order of their deadlines.
    fn learn(&mut self, _shop: &mut Shop, _orders: Range<i64>) {}

    /// Forgets all orders.
    fn forget(&mut self, _shop: &mut Shop) {}

    /// Goes to work; returns when it is ready.
    fn start(&mut self, shop: &mut Shop);

    fn stop(&mut self, shop: &mut Shop);

    /// Its processes besides the server's; panics when one has ended.
    fn pids(&mut self) -> Vec<i32> {
        Vec::new()
    }

    /// What a checkout has to do for it.
    fn scheme(&self) -> Scheme;

    /// Whether it writes events.
    fn has_events(&self) -> bool {
        false
    }

    /// Backend types of server processes that belong to it, as LIKE has them.
    fn backend_types(&self) -> Option<&'static str> {
        None
    }
}

/// Names for PEERS=..., in the order of the tables.
const INSTALLED: [&str; 6] = ["pg_cron", "redis", "rabbitmq", "graphile", "pg_boss", "procrastinate"];

/// Which of those that have to be installed are there: PEERS, as scripts/bench.sh has set it.
pub fn installed() -> Vec<String> {
    let named = std::env::var("PEERS").unwrap_or_default();
    let named: Vec<String> = named.split(',').filter(|name| !name.is_empty()).map(Into::into).collect();
    for name in &named {
        assert!(INSTALLED.contains(&name.as_str()), "PEERS: {name} is none of {}", INSTALLED.join(", "));
    }
    named
}

/// pg_expiry, the timer and the poller, and those that are installed.
pub fn all() -> Vec<Box<dyn Peer>> {
    let mut all: Vec<Box<dyn Peer>> =
        vec![Box::new(pg_expiry::PgExpiry), Box::<timer::Timer>::default(), Box::<poller::Poller>::default()];
    for name in installed() {
        all.push(match name.as_str() {
            "pg_cron" => Box::<pg_cron::PgCron>::default(),
            "redis" => Box::<redis::Redis>::default(),
            "rabbitmq" => Box::<rabbitmq::RabbitMq>::default(),
            "graphile" => Box::<graphile::Graphile>::default(),
            "pg_boss" => Box::<pg_boss::PgBoss>::default(),
            _ => Box::<procrastinate::Procrastinate>::default(),
        });
    }
    all
}

/// The folder into which scripts/peers.sh has put them.
fn folder() -> PathBuf {
    std::env::var_os("PEERS_FOLDER").expect("PEERS_FOLDER, as `make bench` sets it").into()
}

/// Of so many orders that one statement can take them.
fn chunks(orders: Range<i64>) -> impl Iterator<Item = (i64, i64)> {
    const ORDERS: usize = 10_000;
    let end = orders.end;
    orders.step_by(ORDERS).map(move |start| (start, end.min(start + ORDERS as i64)))
}

/// A worker's program in bench/peers.
fn python(program: &str) -> Command {
    let mut python = Command::new(folder().join("python/bin/python"));
    python.arg(path_of(program));
    python
}

fn node(program: &str) -> Command {
    let mut node = Command::new(folder().join("node"));
    node.arg(path_of(program)).env("NODE_PATH", folder().join("npm/node_modules"));
    node
}

fn path_of(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(program)
}

/// Of a package, and of the Node.js that runs it.
fn npm_version(package: &str) -> String {
    let program =
        "console.log(require(process.argv[1] + '/package.json').version, 'on Node.js', process.version)";
    let mut command = Command::new(folder().join("node"));
    let version = command.args(["-e", program]).arg(folder().join("npm/node_modules").join(package));
    worker::first_line(version)
}
