//! A worker's process: started for the shop, ready when it says so, ended by its pid.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use pg_expiry_tests::postgres::{Client, Config, NoTls};
use pg_expiry_tests::{Endpoint, Signal, signal};

use super::{poller, timer};
use crate::shop::Shop;

#[derive(Default)]
pub struct Worker(Option<Child>);

impl Worker {
    /// Starts a program that finds the shop by libpq's environment, and says "ready" on a line of its own.
    pub fn start(&mut self, program: Command, shop: &Shop) {
        let mut command = at_the_shop(program, shop);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = said.by_ref().map_while(Result::ok).any(|line| line == "ready");
        assert!(ready, "{command:?} ended: {:?}", child.wait());
        // What it says from now on has to be read, or it would wait for that.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(|line| println!("    {line}")));
        self.0 = Some(child);
    }

    /// Panics when it has ended.
    pub fn pid(&mut self) -> i32 {
        let child = self.0.as_mut().expect("a worker");
        if let Some(status) = child.try_wait().expect("a worker") {
            panic!("the worker ended by itself: {status}");
        }
        child.id().cast_signed()
    }

    pub fn stdin(&mut self) -> &mut ChildStdin {
        self.0.as_mut().expect("a worker").stdin.as_mut().expect("a pipe")
    }

    pub fn say(&mut self, lines: &str) {
        self.stdin().write_all(lines.as_bytes()).expect("a worker that listens");
    }

    pub fn stop(&mut self) {
        let pid = self.pid();
        signal(pid, Signal::TERM);
        self.0.take().expect("a worker").wait().expect("a worker");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a program at the shop to its end.
pub fn run_at(program: Command, shop: &Shop) {
    let mut command = at_the_shop(program, shop);
    let output = command.output().expect("setpriv");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Finds the shop by libpq's environment.
fn at_the_shop(program: Command, shop: &Shop) -> Command {
    let mut command = dying_with_us(program);
    command.env("PGHOST", shop.db.endpoint.host()).env("PGPORT", Endpoint::PORT.to_string());
    command.env("PGUSER", Endpoint::SUPERUSER).env("PGDATABASE", &shop.db.name);
    command
}

/// The same program, which the kernel ends when we do, however that happens.
pub fn dying_with_us(program: Command) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=TERM").arg("--").arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// One of our own programs.
pub fn ours(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("our program"));
    command.arg(name);
    command
}

/// The first line that a program says.
pub fn first_line(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().next().unwrap_or_default().trim().to_owned()
}

/// A process and all that it has started.
pub fn descendants(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: Vec<(i32, i32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        next += 1;
    }
    found
}

/// After the name, which is in parentheses, come the state and the parent.
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Our program as a worker: `pg_expiry_bench timer` or `poller`.
pub fn work(name: &str) {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}"));
    let connect = || -> Client {
        let mut config = Config::new();
        config.host_path(variable("PGHOST")).port(variable("PGPORT").parse().expect("a port"));
        config.user(&variable("PGUSER")).dbname(&variable("PGDATABASE")).application_name(name);
        config.connect(NoTls).expect("the shop")
    };
    match name {
        "timer" => timer::work(connect()),
        "poller" => poller::work(connect()),
        _ => panic!("no worker is called {name}"),
    }
}
