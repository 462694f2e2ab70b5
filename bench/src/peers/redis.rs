//! A sorted set of Redis: order ids by their deadlines, from which a worker takes what is due once a second.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use pg_expiry_tests::scratch_folder;

use super::server::Server;
use super::worker::{Worker, first_line};
use super::{Peer, folder, python};
use crate::checkout::Scheme;
use crate::shop::Shop;

const KEY: &str = "pending";

#[derive(Default)]
pub struct Redis {
    server: Option<Server>,
    socket: PathBuf,
    worker: Worker,
}

impl Peer for Redis {
    fn name(&self) -> &'static str {
        "Redis sorted set"
    }

    fn version(&self) -> String {
        let said = first_line(program().arg("--version"));
        said.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or(&said).to_owned()
    }

    /// Keeps its log on disk and syncs it once a second, as its manual recommends.
    fn set_up(&mut self, _shop: &mut Shop) {
        let data = scratch_folder("redis");
        self.socket = data.join("socket");
        let mut redis = program();
        redis.arg("--port").arg("0").arg("--unixsocket").arg(&self.socket).arg("--dir").arg(&data);
        redis.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
        let server = self.server.insert(Server::start(redis));
        server.wait_until("Redis", || UnixStream::connect(&self.socket));
    }

    fn learn(&mut self, shop: &mut Shop, orders: Range<i64>) {
        const CHUNK: usize = 1000;
        let sql = "SELECT id::text, extract(epoch FROM pay_by)::text
                   FROM orders WHERE id >= $1 AND id < $2 ORDER BY pay_by";
        let rows = shop.client.query(sql, &[&orders.start, &orders.end]).expect("orders");
        let mut connection = Connection::open(&self.socket);
        for chunk in rows.chunks(CHUNK) {
            let mut command = vec!["ZADD", KEY];
            chunk.iter().for_each(|row| command.extend([row.get::<_, &str>(1), row.get(0)]));
            connection.call(&command);
        }
    }

    fn forget(&mut self, _shop: &mut Shop) {
        Connection::open(&self.socket).call(&["DEL", KEY]);
    }

    fn start(&mut self, shop: &mut Shop) {
        let mut program = python("redis_poller.py");
        program.env("REDIS_SOCKET", &self.socket);
        self.worker.start(program, shop);
    }

    fn stop(&mut self, _shop: &mut Shop) {
        self.worker.stop();
    }

    fn pids(&mut self) -> Vec<i32> {
        let mut pids = self.server.as_mut().expect("Redis").pids();
        pids.push(self.worker.pid());
        pids
    }

    fn scheme(&self) -> Scheme {
        let socket = self.socket.clone();
        Scheme::with_message(move || {
            let mut connection = Connection::open(&socket);
            Box::new(move |id, deadline| {
                connection.call(&["ZADD", KEY, &deadline.to_string(), &id.to_string()])
            })
        })
    }
}

fn program() -> Command {
    Command::new(folder().join("redis-server"))
}

/// To Redis, by its own protocol.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(socket: &PathBuf) -> Connection {
        Connection(BufReader::new(UnixStream::connect(socket).expect("Redis")))
    }

    /// A command that is answered by a number.
    fn call(&mut self, words: &[&str]) {
        let mut command = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| command += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(command.as_bytes()).expect("Redis");
        let mut reply = String::new();
        self.0.read_line(&mut reply).expect("Redis");
        assert!(reply.starts_with(':'), "Redis said {reply}");
    }
}
