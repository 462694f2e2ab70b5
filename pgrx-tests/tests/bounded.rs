//! No table of ours grows without bound, and counters are what they say.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, db_error, wait_for_value, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// More quarantined rows than are looked at in one go, most of which stay due; those that were paid are
/// forgotten whichever they are.
#[test]
fn failures_of_rows_that_are_gone_are_forgotten() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.fill(1..=2500, "now()");
    shop.client
        .batch_execute(
            "INSERT INTO expiry.failure (policy, key, attempts, sqlstate, message, failed_at)
                 SELECT 'orders', jsonb_build_object('id', id::text), 8, 'P0001', 'no', now() FROM orders;
             UPDATE orders SET status = 'paid' WHERE id % 3 = 0;
             SELECT expiry.resume()",
        )
        .unwrap();
    let left = "SELECT count(*) FROM expiry.failure f JOIN orders o ON o.id = (f.key->>'id')::bigint WHERE o.status = 'paid'";
    wait_until("the paid orders to be forgotten", PATIENCE, || match shop.value::<i64>(left) {
        0 => Ok(()),
        left => Err(left),
    });
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 2500 - 2500 / 3);
    assert_eq!(shop.value::<i64>("SELECT quarantined FROM expiry.status"), 2500 - 2500 / 3);
}

/// Policies come and go, each with a name of its own.
#[test]
fn nothing_is_left_of_a_dropped_policy() {
    let mut shop = Shop::new();
    shop.wait_for_worker();
    // As if a worker had written them while their policy was being dropped.
    shop.client
        .batch_execute(
            "INSERT INTO expiry.progress (policy) SELECT 'gone' || n FROM generate_series(1, 50) n;
             INSERT INTO expiry.failure (policy, key, attempts, sqlstate, message, failed_at)
                 SELECT 'gone' || n % 20, to_jsonb(n), 8, 'P0001', 'no', now() FROM generate_series(1, 500) n;
             SELECT expiry.pause('orders'); SELECT expiry.resume('orders')",
        )
        .unwrap();
    for table in ["progress", "failure"] {
        let gone = format!("SELECT count(*) FROM expiry.{table} WHERE policy LIKE 'gone%'");
        wait_for_value(&mut shop.client, &gone, 0_i64);
    }
    for n in 0..10 {
        shop.due(n, SECOND);
        shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
        shop.create_policy("");
    }
    shop.settle();
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    shop.create_policy(", name => 'other'");
    for table in ["progress", "failure", "binding"] {
        let left = format!("SELECT count(*) FROM expiry.{table} WHERE policy = 'orders'");
        wait_for_value(&mut shop.client, &left, 0_i64);
    }
}

#[test]
fn counters_are_reset_and_outlive_the_worker() {
    let mut shop = Shop::new();
    shop.fill(1..=10, "now()");
    shop.wait_for_cancelled(10);
    let cancelled = "SELECT cancelled FROM expiry.status";
    wait_for_value(&mut shop.client, cancelled, 10_i64);
    shop.restart_workers();
    shop.wait_for_worker();
    shop.fill(11..=15, "now()");
    wait_for_value(&mut shop.client, cancelled, 15_i64);

    let mark: String = shop.value("SELECT clock_timestamp()::text");
    assert!(shop.value::<bool>(&format!("SELECT stats_since < '{mark}' FROM expiry.status")));
    shop.client.batch_execute("SELECT expiry.reset_stats('orders')").unwrap();
    let zero = format!(
        "SELECT cancelled = 0 AND declined = 0 AND failed = 0 AND withheld_notifications = 0 AND quarantined = 0
             AND lateness_p50_ms IS NULL AND lateness_max_ms IS NULL AND stats_since > '{mark}'
             AND NOT EXISTS (SELECT FROM expiry.lateness) FROM expiry.status"
    );
    assert!(shop.value::<bool>(&zero));
    shop.fill(16..=17, "now()");
    wait_for_value(&mut shop.client, cancelled, 2_i64);
    shop.client.batch_execute("SELECT expiry.reset_stats()").unwrap();
    assert_eq!(shop.value::<i64>(cancelled), 0);
    let error = db_error(shop.client.batch_execute("SELECT expiry.reset_stats('nobody')"));
    assert_eq!(error.code().code(), "42704");
}

#[test]
fn counters_are_reset_by_who_may() {
    let mut tenants = crate::tenants::Tenants::new(2, "");
    let [one, other] = [tenants.names[0].clone(), tenants.names[1].clone()];
    tenants.fill(0, 1..=3, "now()");
    tenants.fill(1, 1..=4, "now()");
    let counted = |name: &str| format!("SELECT cancelled FROM expiry.status WHERE name = '{name}'");
    wait_for_value(&mut tenants.superuser, &counted(&one), 3_i64);
    wait_for_value(&mut tenants.superuser, &counted(&other), 4_i64);
    let mut client = tenants.connect(0);
    let error = db_error(client.batch_execute(&format!("SELECT expiry.reset_stats('{other}')")));
    assert_eq!(error.code().code(), "42501");
    client.batch_execute("SELECT expiry.reset_stats()").unwrap();
    assert_eq!(tenants.value::<i64>(&counted(&one)), 0);
    assert_eq!(tenants.value::<i64>(&counted(&other)), 4);
}

/// A session that resets, or drops, in a transaction and leaves it open is nobody's trouble.
#[test]
fn open_reset_holds_up_nothing() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.fill(1..=10, "now()");
    wait_for_value(&mut shop.client, "SELECT cancelled FROM expiry.status", 10_i64);
    let mut open = shop.db.connect();
    for statement in ["SELECT expiry.reset_stats()", "SELECT expiry.drop_policy('orders')"] {
        open.batch_execute(&format!("BEGIN; {statement}")).unwrap();
        for id in 0..3 {
            let first = shop.value::<i64>("SELECT max(id) FROM orders") + 1;
            shop.fill(first..=first + id, "now()");
            shop.settle();
        }
        open.batch_execute("ROLLBACK").unwrap();
    }
    let all: i64 = shop.value("SELECT count(*) FROM orders");
    wait_for_value(&mut shop.client, "SELECT cancelled FROM expiry.status", all);
    shop.assert_invariant();
    assert!(!cluster.log().contains("could not look for due rows"));
}

/// A table of which few rows are due, and of which the planner knows nothing, is not read as a whole.
#[test]
fn status_walks_along_the_index() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    shop.client.batch_execute("ALTER TABLE orders SET (autovacuum_enabled = off)").unwrap();
    shop.fill(1..=20_000, "now() + interval '1 day'");
    // Nothing is counted in a new session yet.
    shop.client = shop.db.connect();
    shop.client.batch_execute("BEGIN").unwrap();
    let sql = "SELECT backlog || ' ' || (next_deadline IS NOT NULL)::text FROM expiry.status";
    assert_eq!(shop.value::<String>(sql), "0 true");
    let scans = "SELECT format('%s not by the index', seq_scan) FROM pg_stat_xact_user_tables
                 WHERE relname = 'orders' AND idx_scan > 0";
    assert_eq!(shop.value::<String>(scans), "0 not by the index");
}

/// Nor by create_policy(), which tells how many rows are due, where there is no index yet.
#[test]
fn large_table_is_not_read_for_a_notice() {
    let mut shop = Shop::without_policy();
    // Some 50 MB.
    shop.client
        .batch_execute(
            "ALTER TABLE orders ADD note text DEFAULT repeat('x', 7000); ALTER TABLE orders ALTER note SET STORAGE PLAIN",
        )
        .unwrap();
    shop.fill(1..=6_500, "now() + CASE id WHEN 6500 THEN -interval '1 s' ELSE interval '1 day' END");
    let read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'orders'";
    shop.client.batch_execute("ANALYZE orders").unwrap();
    shop.client = shop.db.connect();
    shop.client.batch_execute("BEGIN").unwrap();
    shop.create_policy("");
    assert_eq!(shop.value::<i64>(read), 0);
    for statement in ["ROLLBACK", "DELETE FROM orders WHERE id > 100", "VACUUM FULL orders"] {
        shop.client.batch_execute(statement).unwrap();
    }
    // Nothing is counted in a new session yet.
    shop.client = shop.db.connect();
    shop.client.batch_execute("BEGIN").unwrap();
    shop.create_policy("");
    assert_eq!(shop.value::<i64>(read), 100);
}
