//! The processes of the extension, as the server and the kernel show them.

use std::fs;
use std::time::Duration;

use chrono::{DateTime, Utc};
use postgres::Client;
use rustix::process::{Pid, Signal, kill_process};

/// A row of `expiry.workers`.
#[derive(Debug, Clone)]
pub struct Worker {
    pub database: String,
    pub owner: String,
    /// None while it waits for its start or its turn.
    pub pid: Option<i32>,
    pub state: String,
    pub policies: i64,
    pub started_at: Option<DateTime<Utc>>,
    pub last_pass: Option<DateTime<Utc>>,
}

/// The workers of the whole cluster that this session may see in `expiry.workers`.
pub fn workers(client: &mut Client) -> Vec<Worker> {
    let sql = "SELECT database::text, owner::text, pid, state::text, policies::bigint, started_at, last_pass
               FROM expiry.workers ORDER BY database, owner";
    let rows = client.query(sql, &[]).expect("expiry.workers");
    let worker = |row: &postgres::Row| Worker {
        database: row.get(0),
        owner: row.get(1),
        pid: row.get(2),
        state: row.get(3),
        policies: row.get(4),
        started_at: row.get(5),
        last_pass: row.get(6),
    };
    rows.iter().map(worker).collect()
}

/// The workers of this database that `pg_stat_activity` shows, without asking the extension.
pub fn worker_pids(client: &mut Client) -> Vec<i32> {
    pids(
        client,
        "SELECT pid FROM pg_stat_activity
         WHERE backend_type = 'pg_expiry worker' AND datname = current_database() ORDER BY pid",
    )
}

/// The launcher of the cluster, if it runs.
pub fn launcher_pid(client: &mut Client) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_expiry launcher'";
    let found = pids(client, sql);
    assert!(found.len() < 2, "more than one launcher: {found:?}");
    found.first().copied()
}

fn pids(client: &mut Client, sql: &str) -> Vec<i32> {
    let rows = client.query(sql, &[]).expect("pg_stat_activity");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Sends a signal as the operating system would; panics when there is no such process.
pub fn signal(pid: i32, signal: Signal) {
    let target = Pid::from_raw(pid).expect("a pid");
    kill_process(target, signal).unwrap_or_else(|error| panic!("kill {signal:?} {pid}: {error}"));
}

/// The memory that a process has for itself, without shared buffers, in kB.
pub fn rss_anon_kb(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a living process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let digits = line.expect("RssAnon").trim().trim_end_matches(" kB");
    digits.parse().expect("a number of kB")
}

/// The processor time that a process has used, in steps of 10 ms.
pub fn cpu_time(pid: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
    // After the name, which is in parentheses, utime and stime are the 12th and 13th field.
    let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}
