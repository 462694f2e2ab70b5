//! Who changes a table gets his lock, and who locks one holds up nobody but the policy on it (R64).

use std::time::{Duration, Instant};

use pg_expiry_tests::{Shop, wait_for_value, wait_until};

use super::common::{SECOND, Watched};

const BATCHES: i64 = 4;

/// Waits until so many orders are due at least, and some have been cancelled since; fills up what is missing.
fn in_the_middle_of_a_drain(shop: &mut Shop) {
    const MANY: i64 = 4000;
    let (due, last): (i64, i64) = {
        let sql = "SELECT count(*) FILTER (WHERE status = 'pending'), max(id) FROM orders";
        let row = shop.client.query_one(sql, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    if due < MANY {
        shop.fill(last + 1..=last + BATCHES * MANY, "now()");
    }
    let cancelled = "SELECT count(*) FROM orders WHERE status = 'cancelled'";
    let before: i64 = shop.value(cancelled);
    wait_until("the drain to go on", 30 * SECOND, || shop.value::<i64>(cancelled) > before);
}

/// R64.
#[test]
fn changes_get_their_lock_during_a_drain() {
    let mut watched = Watched::new();
    let mut client = watched.shop.db.connect();
    client.batch_execute("SET lock_timeout = '2s'").unwrap();
    for sql in [
        "ALTER TABLE orders ADD COLUMN y int",
        "VACUUM FULL orders",
        "TRUNCATE bills",
        "BEGIN; LOCK TABLE orders; LOCK TABLE bills; COMMIT",
        "CREATE INDEX CONCURRENTLY sku_idx ON orders (sku)",
        "DROP INDEX CONCURRENTLY sku_idx",
        "CREATE TABLE line (order_id bigint REFERENCES orders)",
        "CREATE OR REPLACE TRIGGER t BEFORE DELETE ON orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP INDEX orders_pay_by_expiry_idx",
        "ALTER TABLE orders ALTER y TYPE bigint",
        "DROP INDEX CONCURRENTLY orders_pay_by_expiry_idx",
    ] {
        in_the_middle_of_a_drain(&mut watched.shop);
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let left: i64 = watched.shop.value("SELECT count(*) FROM orders WHERE status = 'pending'");
        assert!(left > 0, "{sql}: the drain was over too soon");
    }
    wait_until("all to be cancelled", 60 * SECOND, || {
        watched.shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") == 0
    });
    watched.assert_unharmed();
    watched.shop.assert_invariant();
}

#[test]
fn idle_worker_holds_nothing() {
    let mut watched = Watched::new();
    watched.shop.fill(2..=1000, "now()");
    watched.shop.settle();
    let sql = "SELECT a.state = 'idle' AND a.xact_start IS NULL,
                      (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid), a.backend_xmin::text
               FROM pg_stat_activity a WHERE pid = $1";
    let mut looked_at = 0;
    wait_until("a hundred looks at the idle worker", 30 * SECOND, || {
        let row = watched.shop.client.query_one(sql, &[&watched.pid]).unwrap();
        let (is_idle, locks, xmin): (bool, i64, Option<String>) = (row.get(0), row.get(1), row.get(2));
        if is_idle {
            assert_eq!((locks, xmin), (0, None));
            looked_at += 1;
        }
        looked_at == 100
    });
}

/// R64, the reverse: whoever locks one table holds up that policy alone, and no row is to blame for it.
#[test]
fn lock_on_one_table_makes_no_other_policy_late() {
    for mode in ["ACCESS EXCLUSIVE", "EXCLUSIVE"] {
        let mut watched = Watched::new();
        watched.execute(&["SELECT expiry.alter_policy('orders', max_attempts => 1)"]);
        let mut holder = watched.shop.db.connect();
        holder.batch_execute(&format!("BEGIN; LOCK TABLE orders IN {mode} MODE;
                                       INSERT INTO orders (id, pay_by) SELECT id, now() FROM generate_series(2, 50) id")).unwrap();
        let until = Instant::now() + 6 * SECOND;
        while Instant::now() < until {
            watched.assert_others_are_served();
        }
        holder.batch_execute("COMMIT").unwrap();
        watched.shop.wait_for_cancelled(50);
        // Now it is the cancel function that has to wait.
        watched.shop.fill(51..=60, "now() + interval '1 s'");
        let mut other = watched.shop.db.connect();
        other.batch_execute("BEGIN; LOCK TABLE stock").unwrap();
        let until = Instant::now() + 4 * SECOND;
        while Instant::now() < until {
            watched.assert_others_are_served();
        }
        other.batch_execute("COMMIT").unwrap();
        watched.shop.wait_for_cancelled(60);
        watched.assert_unharmed();
        watched.shop.assert_invariant();
    }
}

/// A build waits for every older transaction, maybe for hours, and holds a lock all that time; but it gives way.
#[test]
fn build_gives_way() {
    let mut watched = Watched::new();
    let mut old = watched.shop.db.connect();
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM bills").unwrap();
    let builds = "SELECT count(*) FROM pg_stat_progress_create_index WHERE datname = current_database() AND phase LIKE 'waiting for%'";
    let mut client = watched.shop.db.connect();
    client.batch_execute("SET lock_timeout = '5s'").unwrap();
    watched.execute(&["DROP INDEX orders_pay_by_expiry_idx"]);
    for sql in [
        "ALTER TABLE orders ADD COLUMN y int",
        "BEGIN; LOCK TABLE orders; COMMIT",
        "CREATE INDEX ON orders (sku)",
    ] {
        wait_for_value(&mut watched.shop.client, builds, 1_i64);
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    // Who reads and writes never waits for it, and so it is left alone.
    wait_for_value(&mut watched.shop.client, builds, 1_i64);
    let builder = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_expiry index builder' AND datname = current_database()";
    let pid: i32 = watched.shop.value(builder);
    watched.shop.due(2, Duration::ZERO);
    for _ in 0..3 {
        watched.assert_others_are_served();
    }
    assert_eq!(watched.shop.value::<i32>(builder), pid);
    wait_for_value(
        &mut watched.shop.client,
        "SELECT state FROM expiry.status WHERE name = 'orders'",
        "indexing".to_owned(),
    );
    // That builds the index too, and waits for nobody.
    client.batch_execute("VACUUM FULL orders").unwrap();
    watched.shop.wait_for_cancelled(2);
    old.batch_execute("COMMIT").unwrap();
    watched.assert_unharmed();
    watched.assert_leaves_nothing();
}
