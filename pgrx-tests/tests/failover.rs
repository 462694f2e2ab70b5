//! A standby is silent, takes over when it is promoted, and cancels nothing a second time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pg_expiry_tests::serde_json::Value;
use pg_expiry_tests::{Cluster, Db, Shop, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

/// Lines of a log that tell of trouble of ours.
fn complaints(log: &str) -> Vec<&str> {
    let is_trouble = |line: &&str| {
        let is_ours = line.contains("pg_expiry ") || line.contains("pg_expiry:");
        is_ours && ["ERROR:", "WARNING:", "FATAL:", "PANIC:"].iter().any(|level| line.contains(level))
    };
    log.lines().filter(is_trouble).collect()
}

/// The shop as another server has it.
fn on(cluster: &Cluster, shop: &Shop) -> Shop {
    let db = Db { name: shop.db.name.clone(), endpoint: cluster.endpoint().clone() };
    let client = db.connect();
    Shop { db, client }
}

/// R59.
#[test]
fn standby_goes_on_where_the_primary_has_stopped() {
    let primary = Cluster::start();
    let mut shop = Shop::in_database(primary.create_database());
    shop.db.create_extension();
    shop.create_policy(", batch_size => 20");
    shop.fill(1..=100, "now() - interval '1 s'");
    shop.settle();

    let standby = primary.standby();
    primary.set("synchronous_standby_names", "*");
    let sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    wait_until("the standby to be synchronous", PATIENCE, || shop.value::<i64>(sync) == 1);
    let mut replica = on(&standby, &shop);

    // Killed in the middle of this.
    let listener = shop.listen();
    shop.fill(101..=5000, "now() + (id - 100) * interval '200 us'");
    let seen = "SELECT count(*) FROM expiry.event";
    wait_until("a part of the events on the standby", PATIENCE, || replica.value::<i64>(seen) > 1000);
    primary.kill9_postmaster();
    let mut heard: HashMap<Value, i64> = HashMap::new();
    for next in listener.last_words() {
        assert_eq!(heard.insert(next.json["key"].clone(), next.json["id"].as_i64().unwrap()), None);
    }
    let last_heard = heard.values().copied().max().unwrap();
    assert!(heard.len() < 4900, "killed too late");
    assert!(replica.value::<bool>("SELECT pg_is_in_recovery()"));
    assert_eq!(complaints(&standby.log()), [""; 0]);

    let promoted_at = Instant::now();
    let before: i64 = replica.value("SELECT max(id) FROM expiry.event");
    assert!(replica.value::<bool>("SELECT pg_promote()"));
    wait_until("the first order to be cancelled after the promotion", Duration::from_secs(10), || {
        replica.value::<i64>("SELECT max(id) FROM expiry.event") > before
    });
    println!("first order cancelled {:?} after the promotion", promoted_at.elapsed());
    // Where all went fast, some are not due yet.
    replica.wait_for_cancelled(5000);
    replica.assert_invariant();
    assert_eq!(replica.value::<i64>(seen), 5000);

    // What was heard of the primary has happened, and what has happened since is younger.
    let rows = replica.client.query("SELECT key, id FROM expiry.event ORDER BY id", &[]).unwrap();
    let events: HashMap<Value, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (key, id) in &heard {
        assert_eq!(events.get(key), Some(id), "order {key}");
    }
    let new = replica.value::<i64>(&format!("SELECT count(*) FROM expiry.event WHERE id > {last_heard}"));
    assert_eq!(usize::try_from(new).unwrap() + heard.len() + 100, 5000);
    assert_eq!(complaints(&standby.log()), [""; 0]);
}
