//! `make bench`: pg_expiry beside what people use instead, on the same shop, in one run; then the report.
//!
//! SCALE=quick or tiny measures less; ONLY=backlog,checkout,... only some of it; PEERS=redis,... beside fewer.
//! What was measured is kept in RESULTS, from which the report is made anew by `pg_expiry_bench report`.

mod backlog;
mod checkout;
mod contest;
mod idle;
mod lookahead;
mod machine;
mod memory;
mod peers;
mod pgbench;
mod punctual;
mod report;
mod results;
mod rivals;
mod scale;
mod shop;
mod svg;

use std::env;
use std::path::PathBuf;
use std::time::Instant;

use contest::{Part, in_words};
use peers::Peer;
use pg_expiry_tests::Cluster;
use results::Results;
use scale::Scale;
use shop::Shop;

fn main() {
    match env::args().nth(1).as_deref() {
        None => {
            measure();
            report::write(&results(), &folder("OUT"));
        }
        Some("report") => report::write(&results(), &folder("OUT")),
        Some(worker) => peers::work(worker),
    }
}

fn folder(variable: &str) -> PathBuf {
    env::var_os(variable).unwrap_or_else(|| panic!("{variable}, as `make bench` sets it")).into()
}

fn results() -> Results {
    Results::in_folder(folder("RESULTS"))
}

/// What a contest is held on.
struct Stage<'a> {
    cluster: &'a Cluster,
    shop: &'a mut Shop,
    peers: &'a mut [Box<dyn Peer>],
    scale: &'a Scale,
}

type Measure = fn(Stage) -> Vec<Part>;

/// By their names for ONLY, in the order of the report.
const PARTS: [(&str, Measure); 11] = [
    ("punctual", |stage| punctual::run(stage.cluster, stage.shop, stage.peers, stage.scale).into()),
    ("busy", |stage| vec![punctual::run_busy(stage.cluster, stage.shop, stage.peers, stage.scale)]),
    ("instant", |stage| vec![punctual::run_one_instant(stage.shop, stage.scale)]),
    ("backlog", |stage| vec![backlog::run(stage.shop, stage.scale)]),
    ("shared", |stage| vec![backlog::run_shared(stage.cluster, stage.shop, stage.scale)]),
    ("snapshot", |stage| vec![backlog::run_under_old_snapshot(stage.shop, stage.scale)]),
    ("peers", |stage| vec![rivals::run(stage.shop, stage.peers, stage.scale)]),
    ("checkout", |stage| {
        vec![
            checkout::run(stage.cluster, stage.shop, stage.scale),
            checkout::run_schemes(stage.shop, stage.peers, stage.scale),
        ]
    }),
    ("drain", |stage| vec![checkout::run_beside_a_drain(stage.shop, stage.scale)]),
    ("lookahead", |stage| vec![lookahead::run(stage.cluster, stage.shop, stage.scale)]),
    ("memory", |stage| vec![memory::run(stage.shop, stage.scale)]),
];

fn measure() {
    let scale = Scale::named(&env::var("SCALE").unwrap_or_default());
    let only = env::var("ONLY").unwrap_or_default();
    let only: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    for name in &only {
        let names = PARTS.map(|(name, _)| name);
        assert!(names.contains(name), "ONLY: {name} is none of {}", names.join(", "));
    }
    let results = results();
    if only.is_empty() {
        results.remove_all();
    }
    let begun = Instant::now();
    let cluster = shop::cluster(peers::installed().iter().any(|name| name == "pg_cron"));
    let mut shop = Shop::open(&cluster);
    let mut peers = peers::all();
    for peer in &mut peers {
        peer.set_up(&mut shop);
    }
    results.keep_machine(&machine::look(&mut shop, &peers, &scale));
    for (name, measure) in PARTS {
        if only.is_empty() || only.contains(&name) {
            println!("[{:>4} s] {name}", begun.elapsed().as_secs());
            let (shop, peers) = (&mut shop, peers.as_mut_slice());
            let mut parts = measure(Stage { cluster: &cluster, shop, peers, scale: &scale });
            for part in &mut parts {
                part.measured_at = machine::now(shop);
                print(part);
            }
            results.keep(name, &parts);
        }
    }
    println!("[{:>4} s] done", begun.elapsed().as_secs());
}

/// Medians, each rival as a multiple of the first, and the targets.
fn print(part: &Part) {
    println!("{}", part.title);
    for contest in &part.contests {
        println!("  {} ({})", contest.title, contest.unit);
        for (place, rival) in contest.rivals.iter().enumerate() {
            let ratio = contest.ratio(place, 0);
            println!("    {:55} {:>12}   x {ratio:.2}", rival.name, in_words(contest.median(place)));
        }
    }
    for target in &part.targets {
        println!("  {}: {}, {}", target.aim, in_words(target.figure), target.verdict());
    }
}
