//! What it costs to wait: processor time and memory while nothing is due.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::Cluster;

use crate::contest::{Contest, Part, Target};
use crate::peers::{self, Peer};
use crate::scale::Scale;
use crate::shop::Shop;

pub struct Costs {
    cpu: Contest,
    memory: Contest,
}

/// The rival that comes after all the others.
const ALONE: &str = "PostgreSQL alone";

impl Costs {
    pub fn new(names: &[&str]) -> Costs {
        let names: Vec<&str> = names.iter().copied().chain([ALONE]).collect();
        Costs {
            cpu: Contest::new("CPU seconds", "s/min", names.clone()),
            memory: Contest::new("memory", "MB", names),
        }
    }

    /// With nobody who waits for anything.
    pub fn push_server_alone(&mut self, cluster: &Cluster, shop: &mut Shop, scale: &Scale) {
        let pids = without(&cluster.processes(), shop, "pg\\_expiry%", "pg\\_cron%");
        self.push_all(self.cpu.rivals.len() - 1, &pids, &[], scale);
    }

    /// While the peer waits.
    pub fn push(
        &mut self,
        place: usize,
        cluster: &Cluster,
        shop: &mut Shop,
        peer: &mut dyn Peer,
        scale: &Scale,
    ) {
        let its_own = peer.backend_types().unwrap_or_default();
        let others = ["pg\\_expiry%", "pg\\_cron%"].map(|types| if types == its_own { "" } else { types });
        let server = without(&cluster.processes(), shop, others[0], others[1]);
        let of_peer: Vec<i32> = peer.pids().into_iter().flat_map(peers::descendants).collect();
        let backends = workers_of(shop, its_own);
        let memory: Vec<i32> = of_peer.iter().copied().chain(backends).collect();
        let pids: Vec<i32> = server.into_iter().chain(of_peer).collect();
        self.push_all(place, &pids, &memory, scale);
    }

    fn push_all(&mut self, place: usize, pids: &[i32], memory: &[i32], scale: &Scale) {
        let (used, passed) = cpu_while(pids, Duration::from_secs(scale.idle_s));
        self.cpu.push(place, used.as_secs_f64() / passed.as_secs_f64() * 60.0);
        self.memory.push(place, memory.iter().fold(0.0, |sum, pid| sum + pss_mb(*pid)));
    }

    pub fn part(self, scale: &Scale) -> Part {
        let ours = self.cpu.median(0) / 60.0 * 100.0;
        let alone = self.cpu.median(self.cpu.rivals.len() - 1) / 60.0 * 100.0;
        Part {
            title: "What waiting costs".into(),
            how: format!(
                "{} orders are pending and none is due, for {} s. CPU time is that of all the server's processes, and \
                 of the peer's own servers and workers, without the launchers of the others. Memory (PSS: shared pages \
                 count in parts) is that of the peer's own processes, without the sessions that it has in PostgreSQL.",
                scale.pending, scale.idle_s
            ),
            targets: vec![Target::at_most(
                0.1,
                ours - alone,
                "idle CPU of pg_expiry, in % of one processor, beyond that of PostgreSQL alone",
            )],
            contests: vec![self.cpu, self.memory],
            ..Part::default()
        }
    }
}

/// Those of the processes whose backend type is like neither.
fn without(pids: &[i32], shop: &mut Shop, one: &str, other: &str) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE $1 OR backend_type LIKE $2";
    let rows = shop.client.query(sql, &[&one, &other]).expect("pg_stat_activity");
    let left_out: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    pids.iter().copied().filter(|pid| !left_out.contains(pid)).collect()
}

fn workers_of(shop: &mut Shop, types: &str) -> Vec<i32> {
    let rows = shop.client.query("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE $1", &[&types]);
    rows.expect("pg_stat_activity").iter().map(|row| row.get(0)).collect()
}

/// The processor time that these and their ended children use during so long; and how long it was.
pub fn cpu_while(pids: &[i32], time: Duration) -> (Duration, Duration) {
    let total = || pids.iter().map(|pid| cpu_time(*pid)).sum::<Duration>();
    let (before, begun) = (total(), Instant::now());
    thread::sleep(time);
    (total().saturating_sub(before), begun.elapsed())
}

/// Of a process that lives: its threads by the scheduler's nanoseconds, its ended children in steps of 10 ms.
fn cpu_time(pid: i32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds = |task: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    let threads = Duration::from_nanos(tasks.filter_map(nanoseconds).sum());
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    threads + Duration::from_millis(ticks * 10)
}

fn pss_mb(pid: i32) -> f64 {
    memory_kb(pid, "Pss:") as f64 / 1024.0
}

/// A line of /proc/PID/smaps_rollup.
pub fn memory_kb(pid: i32, line: &str) -> u64 {
    let said = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let said = said.unwrap_or_else(|error| panic!("the memory of process {pid}: {error}"));
    let figure = said.lines().find_map(|each| each.strip_prefix(line)).expect("such a line");
    figure.trim().trim_end_matches(" kB").parse().expect("kB")
}
