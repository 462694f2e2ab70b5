//! RabbitMQ: a message for each order waits in a queue until it expires, is dead-lettered into another queue, and
//! a consumer of that one cancels the order.
//!
//! Messages expire at the head of a queue only, so a queue holds messages of one timeout, which come in the order
//! of their deadlines: orders that are far from due have another queue than the others.

use std::ops::Range;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use pg_expiry_tests::scratch_folder;

use super::amqp::Publisher;
use super::server::{Server, free_port};
use super::worker::Worker;
use super::{Peer, folder, python};
use crate::checkout::Scheme;
use crate::shop::{FAR, Shop};

const SOON: &str = "soon";
const LATER: &str = "later";
const CANCEL: &str = "cancel";

#[derive(Default)]
pub struct RabbitMq {
    port_mapper: Option<Server>,
    server: Option<Server>,
    port: u16,
    worker: Worker,
}

impl RabbitMq {
    fn publisher(&self) -> Publisher {
        Publisher::open(self.port).expect("RabbitMQ")
    }
}

impl Peer for RabbitMq {
    fn name(&self) -> &'static str {
        "RabbitMQ, TTL and dead letter"
    }

    fn version(&self) -> String {
        std::fs::read_to_string(folder().join("rabbitmq-version")).expect("a version").trim().into()
    }

    fn set_up(&mut self, _shop: &mut Shop) {
        let data = scratch_folder("rabbitmq");
        let (names, nodes) = (free_port(), free_port());
        self.port = free_port();
        let erlang = |name: &str| {
            let mut command = Command::new(folder().join(name));
            command.env("HOME", &data).env("ERL_EPMD_PORT", names.to_string());
            command.env("ERL_EPMD_ADDRESS", "127.0.0.1");
            command
        };
        self.port_mapper = Some(Server::start(erlang("epmd")));
        let mut rabbit = erlang("rabbitmq-server");
        rabbit.env("RABBITMQ_NODENAME", format!("pg_expiry_bench_{}@localhost", self.port));
        rabbit.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1").env("RABBITMQ_NODE_PORT", self.port.to_string());
        rabbit.env("RABBITMQ_DIST_PORT", nodes.to_string()).env("RABBITMQ_MNESIA_BASE", data.join("mnesia"));
        rabbit.env("RABBITMQ_LOG_BASE", data.join("log")).env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
        rabbit.env("RABBITMQ_CONFIG_FILE", data.join("none")).env("RABBITMQ_ENABLED_PLUGINS", "");
        rabbit.env("RABBITMQ_ENABLED_PLUGINS_FILE", data.join("plugins"));
        let server = self.server.insert(Server::start(rabbit));
        let mut publisher = server.wait_until("RabbitMQ", || Publisher::open(self.port));
        let dead_letter = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", CANCEL)];
        publisher.declare(CANCEL, &[]).expect("a queue");
        publisher.declare(SOON, &dead_letter).expect("a queue");
        publisher.declare(LATER, &dead_letter).expect("a queue");
    }

    fn learn(&mut self, shop: &mut Shop, orders: Range<i64>) {
        const WINDOW: u64 = 1000;
        let queue = if orders.start >= FAR { LATER } else { SOON };
        let sql = "SELECT id::text, extract(epoch FROM pay_by)::float8
                   FROM orders WHERE id >= $1 AND id < $2 ORDER BY pay_by";
        let mut publisher = self.publisher();
        for row in shop.client.query(sql, &[&orders.start, &orders.end]).expect("orders") {
            publisher.publish(queue, row.get(0), left_ms(row.get(1))).expect("a message");
            publisher.wait_for_confirms(WINDOW).expect("confirms");
        }
        publisher.wait_for_confirms(0).expect("confirms");
    }

    fn forget(&mut self, _shop: &mut Shop) {
        let mut publisher = self.publisher();
        for queue in [SOON, LATER, CANCEL] {
            publisher.purge(queue).expect("an empty queue");
        }
    }

    fn start(&mut self, shop: &mut Shop) {
        let mut program = python("rabbitmq_consumer.py");
        program.env("RABBITMQ_PORT", self.port.to_string());
        self.worker.start(program, shop);
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.worker.stop();
    }

    fn pids(&mut self) -> Vec<i32> {
        let servers = [&mut self.port_mapper, &mut self.server].into_iter().flatten();
        servers.flat_map(Server::pids).chain([self.worker.pid()]).collect()
    }

    fn scheme(&self) -> Scheme {
        let port = self.port;
        Scheme::with_message(move || {
            let mut publisher = Publisher::open(port).expect("RabbitMQ");
            Box::new(move |id, deadline| {
                publisher.publish(SOON, &id.to_string(), left_ms(deadline)).expect("a message");
                publisher.wait_for_confirms(0).expect("a confirm");
            })
        })
    }
}

/// Milliseconds until then, rounded up: never too early.
fn left_ms(deadline: f64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
    ((deadline - now.as_secs_f64()) * 1000.0).ceil().max(0.0) as u64
}
