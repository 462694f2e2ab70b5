//! The clients of examples/, each against a real server: their connections are ended again and again, and they
//! have dealt with each event exactly once, in order. `scripts/clients.sh` brings what they need to run.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::{Endpoint, Installation, Shop, Signal, repository, wait_until};
use rustix::process::{Pid, kill_process_group};

const PATIENCE: Duration = Duration::from_secs(30);

fn examples() -> PathBuf {
    repository::root().join("examples/clients")
}

/// Where cargo and `scripts/clients.sh` put what they build and download.
fn target() -> PathBuf {
    let tests = env::current_exe().expect("our own path");
    // target/debug/deps/pg_expiry-0123
    tests.ancestors().nth(3).expect("the target folder").to_owned()
}

/// A running client; killed with all it has started when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command, shop: &Shop) -> Running {
        command.env("PGHOST", shop.db.endpoint.host()).env("PGPORT", Endpoint::PORT.to_string());
        command.env("PGUSER", Endpoint::SUPERUSER).env("PGDATABASE", &shop.db.name);
        Running(command.process_group(0).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().cast_signed()).expect("a pid");
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs a client while orders expire and its connection is ended.
fn deals_with_each_event_once(command: impl FnOnce(&Shop) -> Command) {
    let mut shop = Shop::new();
    shop.client.batch_execute(include_str!("../../examples/clients/outbox.sql")).unwrap();
    shop.wait_for_index();
    // What happened before it came, more than it reads at a time.
    shop.fill(1..=250, "now()");
    shop.wait_for_cancelled(250);
    let mut running = Running::start(command(&shop), &shop);
    wait_for_refunds(&mut shop, 250);

    // While it is connected, and while it is not.
    shop.fill(251..=850, "now() + (id - 250) * interval '5 ms'");
    let connected = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'refunds'";
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'refunds'";
    for share in [300, 500, 700] {
        wait_until("its connection, and a part of the refunds", PATIENCE, || {
            let refunds: i64 = shop.value("SELECT count(*) FROM refund");
            let is_connected = shop.value::<i64>(connected) > 0;
            if is_connected && refunds >= share { Ok(()) } else { Err((is_connected, refunds)) }
        });
        assert!(shop.value::<i64>(kill) > 0);
    }
    shop.wait_for_cancelled(850);
    wait_for_refunds(&mut shop, 850);

    // In the middle of a transaction of its own: it waits for the lock on its place, and is killed there.
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; SELECT FROM refund_place FOR UPDATE").unwrap();
    shop.fill(851..=860, "now()");
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'refunds'
                 AND datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("it to be in the middle", PATIENCE, || shop.value::<i64>(waits) > 0);
    assert!(shop.value::<i64>(kill) > 0);
    holder.batch_execute("ROLLBACK").unwrap();
    wait_for_refunds(&mut shop, 860);

    // It sits idle: a notification wakes it, before it would look by itself in 30 s.
    shop.fill(861..=861, "now() + interval '1 s'");
    wait_until("the last refund", PATIENCE / 2, || shop.value::<i64>("SELECT count(*) FROM refund") == 861);

    let same = "SELECT (SELECT array_agg(event_id ORDER BY n) FROM refund) = (SELECT array_agg(id ORDER BY id) FROM expiry.event)
                   AND NOT EXISTS (SELECT FROM refund JOIN expiry.event ON id = event_id WHERE order_key <> key)";
    assert!(shop.value::<bool>(same), "refunds are not the events, each once, in order");
    let place = "SELECT last_id = (SELECT max(id) FROM expiry.event) FROM refund_place";
    assert!(shop.value::<bool>(place));
    assert!(running.0.try_wait().unwrap().is_none(), "the client has ended");
}

#[track_caller]
fn wait_for_refunds(shop: &mut Shop, count: i64) {
    wait_until(format_args!("{count} refunds"), PATIENCE, || {
        match shop.value::<i64>("SELECT count(*) FROM refund") {
            seen if seen == count => Ok(()),
            seen => Err(seen),
        }
    });
}

#[test]
fn python_client_deals_with_each_event_once() {
    deals_with_each_event_once(|_| {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(examples().join("python/refunds.py"));
        command
    });
}

#[test]
fn node_client_deals_with_each_event_once() {
    deals_with_each_event_once(|_| {
        let mut modules = OsString::from(target().join("clients/node/node_modules"));
        modules.push(":/usr/share/nodejs");
        let mut command = Command::new("node");
        command.arg(examples().join("node/refunds.js")).env("NODE_PATH", modules);
        command
    });
}

#[test]
fn rust_client_deals_with_each_event_once() {
    deals_with_each_event_once(|shop| {
        let mut command = Command::new(target().join("debug/refunds"));
        let (host, port) = (shop.db.endpoint.host().display(), Endpoint::PORT);
        command.arg(format!("host={host} port={port} user=postgres dbname={}", shop.db.name));
        command
    });
}

#[test]
fn psql_client_deals_with_each_event_once() {
    deals_with_each_event_once(|_| {
        let psql = Installation::get().program("psql");
        let mut path = OsString::from(psql.parent().expect("a folder"));
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command.arg(examples().join("psql/refunds.sh")).env("PATH", path);
        command
    });
}

#[test]
fn java_client_deals_with_each_event_once() {
    deals_with_each_event_once(|shop| {
        let port = forward(shop.db.endpoint.host().join(format!(".s.PGSQL.{}", Endpoint::PORT)));
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-cp", "/usr/share/java/postgresql.jar"]);
        command.arg(examples().join("java/Refunds.java"));
        command.arg(format!(
            "jdbc:postgresql://127.0.0.1:{port}/{}?user=postgres&ApplicationName=refunds",
            shop.db.name
        ));
        command
    });
}

/// pgjdbc speaks TCP only, and our servers listen on a socket only: forwards, as long as the tests run.
fn forward(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&socket) else { continue };
            let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { continue };
            thread::spawn(move || copy(client, server));
            thread::spawn(move || copy(server_too, client_too));
        }
    });
    port
}

/// Up to the end of either, which then is the end of both.
fn copy<From: Read, To: Write + AsFd>(mut from: From, mut to: To) {
    let _ = io::copy(&mut from, &mut to);
    let _ = rustix::net::shutdown(to, rustix::net::Shutdown::Both);
}
