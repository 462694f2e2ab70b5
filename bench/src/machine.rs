//! On what it was measured: the machine, the server, the versions of the others, the scale.

use std::{env, fs, thread};

use serde::{Deserialize, Serialize};

use crate::peers::Peer;
use crate::scale::Scale;
use crate::shop::Shop;

#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    pub scale: String,
    pub rounds: usize,
    /// Name and value, as in the report's table.
    pub facts: Vec<(String, String)>,
    /// Name and version.
    pub peers: Vec<(String, String)>,
    /// What of the others is missing, and why.
    pub missing: Vec<String>,
}

pub fn look(shop: &mut Shop, peers: &[Box<dyn Peer>], scale: &Scale) -> Machine {
    let line = |file: &str, start: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
        line.trim_start_matches([' ', '\t', ':', '=']).trim_matches('"').to_owned()
    };
    let memory_kb: f64 =
        line("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
    let facts = [
        ("measured", now(shop)),
        ("scale", format!("{}, {} rounds", scale.name, scale.rounds)),
        ("pg_expiry", env::var("COMMIT").unwrap_or_default()),
        ("PostgreSQL", shop.value("SELECT current_setting('server_version')")),
        ("processors", thread::available_parallelism().map_or(0, usize::from).to_string()),
        ("of the kind", line("/proc/cpuinfo", "model name")),
        ("memory", format!("{:.0} GB", memory_kb / 1024.0 / 1024.0)),
        ("kernel", fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()),
        ("system", line("/etc/os-release", "PRETTY_NAME")),
        ("one commit takes", format!("{:.2} ms", commit_ms(shop))),
        ("others at work", format!("load average {}", line("/proc/loadavg", ""))),
    ];
    let missing = env::var("PEERS_MISSING").unwrap_or_default();
    Machine {
        scale: scale.name.into(),
        rounds: scale.rounds,
        facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
        peers: peers.iter().map(|peer| (peer.name().into(), peer.version())).collect(),
        missing: missing.split('\n').filter(|line| !line.is_empty()).map(Into::into).collect(),
    }
}

pub fn now(shop: &mut Shop) -> String {
    shop.value("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'")
}

/// Of one row, with its flush to disk: the median.
fn commit_ms(shop: &mut Shop) -> f64 {
    let took = |_| {
        let begun = std::time::Instant::now();
        shop.run("UPDATE stock SET qty = qty WHERE sku = 1");
        begun.elapsed().as_secs_f64() * 1000.0
    };
    crate::contest::median(&(0..101).map(took).collect::<Vec<_>>())
}
