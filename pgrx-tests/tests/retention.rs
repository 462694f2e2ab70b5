//! Old events are deleted: in small batches, by themselves, and not what a named consumer still waits for.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// Events of the policy `policy`, so old; `age` is SQL in which `n`, from 1, may occur.
fn record(shop: &mut Shop, policy: &str, count: i64, age: &str) {
    let sql = format!(
        "INSERT INTO expiry.event (id, policy, owner, key, kind, deadline, occurred_at, lateness)
         SELECT nextval('expiry.event_id_seq'), '{policy}', 10, jsonb_build_object('id', n::text), 'cancelled',
             now() - {age}, now() - {age}, '0'
         FROM generate_series(1, {count}) n"
    );
    shop.client.batch_execute(&sql).unwrap();
}

/// A shop that keeps events for an hour.
fn shop() -> Shop {
    ready(Shop::with_settings(&[("pg_expiry.event_retention", "1h")]))
}

fn ready(mut shop: Shop) -> Shop {
    shop.create_policy("");
    shop.wait_for_index();
    shop.wait_for_worker();
    shop
}

/// New workers prune at once; waits until so many events are left.
fn prune(shop: &mut Shop, left: i64) {
    shop.restart_workers();
    let sql = "SELECT count(*) FROM expiry.event";
    wait_until(format_args!("{left} events to be left"), PATIENCE, || match shop.value::<i64>(sql) {
        seen if seen == left => Ok(()),
        seen => Err(seen),
    });
}

#[test]
fn old_events_are_deleted_and_young_ones_are_not() {
    let mut shop = shop();
    record(&mut shop, "orders", 100, "interval '61 min'");
    record(&mut shop, "orders", 50, "interval '59 min'");
    prune(&mut shop, 50);
    let least: i64 = shop.value("SELECT min(id) FROM expiry.event");
    assert_eq!(least, 101);
    // Whoever asks for what is gone gets what is left.
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.events_after(0)"), 50);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.events_after(10)"), 50);
}

#[test]
fn batches_are_small() {
    let mut shop = shop();
    shop.client
        .batch_execute(
            "CREATE TABLE deleted (rows bigint);
             CREATE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS
                 $$ BEGIN INSERT INTO deleted SELECT count(*) FROM gone; RETURN NULL; END $$;
             CREATE TRIGGER small AFTER DELETE ON expiry.event REFERENCING OLD TABLE AS gone
                 FOR EACH STATEMENT EXECUTE FUNCTION count_deleted()",
        )
        .unwrap();
    record(&mut shop, "orders", 5500, "interval '2 h'");
    prune(&mut shop, 0);
    assert_eq!(shop.value::<i64>("SELECT max(rows) FROM deleted"), 1000);
    assert_eq!(shop.value::<i64>("SELECT sum(rows)::bigint FROM deleted"), 5500);
}

#[test]
fn nothing_is_deleted_without_a_limit() {
    let mut shop = Shop::with_settings(&[("pg_expiry.event_retention", "0")]);
    shop.create_policy("");
    shop.wait_for_index();
    record(&mut shop, "orders", 10, "interval '20 years'");
    shop.restart_workers();
    // Two looks of the new worker: it has had its chance.
    let worker = shop.wait_for_worker();
    let again =
        format!("SELECT last_pass - started_at > interval '1 s' FROM expiry.workers WHERE pid = {worker}");
    wait_until("another look", PATIENCE, || shop.value::<Option<bool>>(&again) == Some(true));
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 10);
}

/// Four times as long, and of its own policy only; a consumer of all policies keeps all.
#[test]
fn events_that_a_consumer_has_not_acknowledged_are_kept_four_times_as_long() {
    let mut shop = shop();
    shop.client
        .batch_execute(
            "CREATE TABLE seats (LIKE orders INCLUDING ALL);
             CREATE FUNCTION cancel_seat(k bigint) RETURNS void LANGUAGE sql AS $$ UPDATE seats SET status = 'x' WHERE id = k $$;
             SELECT expiry.create_policy('seats', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'cancel_seat(bigint)')",
        )
        .unwrap();
    // Too old for anybody; old; acknowledged in part; and of a policy that nobody has subscribed to.
    record(&mut shop, "seats", 10, "interval '241 min'");
    record(&mut shop, "seats", 20, "interval '239 min'");
    record(&mut shop, "orders", 3000, "interval '2 h'");
    record(&mut shop, "seats", 30, "interval '61 min'");
    record(&mut shop, "orders", 5, "interval '1 min'");
    shop.client
        .batch_execute(
            "SELECT expiry.subscribe('c', 'seats', 0); SELECT FROM expiry.fetch_events('c', 15); SELECT expiry.ack_events('c', 15)",
        )
        .unwrap();
    prune(&mut shop, 15 + 30 + 5);
    let kept = "SELECT array_agg(id ORDER BY id) FROM expiry.event WHERE policy = 'seats' AND id <= 30";
    assert_eq!(shop.value::<Vec<i64>>(kept), (16..=30).collect::<Vec<i64>>());
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.fetch_events('c')"), 45);
    // What is acknowledged goes, though the worker has passed there before.
    shop.client
        .batch_execute(
            "SELECT expiry.ack_events('c', (SELECT max(id) FROM expiry.event WHERE policy = 'seats'))",
        )
        .unwrap();
    let left = "SELECT count(*) FROM expiry.event";
    wait_until("the next pass", PATIENCE, || shop.value::<i64>(left) == 5);
    // A consumer of all policies who is behind keeps all; one that is gone keeps nothing.
    shop.client.batch_execute("SELECT expiry.subscribe('all', after => 0)").unwrap();
    record(&mut shop, "orders", 7, "interval '2 h'");
    record(&mut shop, "orders", 1, "interval '5 h'");
    prune(&mut shop, 12);
    shop.client.batch_execute("SELECT expiry.unsubscribe('all')").unwrap();
    prune(&mut shop, 5);
}

/// Deleting goes on though there is always something to cancel.
#[test]
fn events_are_deleted_under_load() {
    let mut shop = shop();
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', batch_size => 1)").unwrap();
    shop.fill(1..=6000, "now()");
    record(&mut shop, "old", 3000, "interval '2 h'");
    let old = "SELECT count(*) FROM expiry.event WHERE policy = 'old'";
    let due = "SELECT count(*) FROM orders WHERE status = 'pending'";
    shop.restart_workers();
    let left = wait_until("the old ones to be gone", PATIENCE, || {
        (shop.value::<i64>(old) == 0).then(|| shop.value::<i64>(due))
    });
    assert!(left > 0, "the load was over before");
}

/// The table stays as small as what it holds: short in CI, a million events with PG_EXPIRY_LONG set.
///
/// On a server of its own, without autovacuum: pages of an index are used again only when they are older than
/// every transaction of the cluster, and VACUUM keeps what anybody in the database may still see.
#[test]
fn events_leave_no_bloat() {
    let is_long = std::env::var_os("PG_EXPIRY_LONG").is_some();
    let each = if is_long { 100_000 } else { 8_000 };
    let cluster =
        Cluster::builder().setting("autovacuum", "off").setting("pg_expiry.event_retention", "1h").start();
    let db = cluster.create_database();
    db.create_extension();
    let mut shop = ready(Shop::in_database(db));
    let size = "SELECT pg_total_relation_size('expiry.event')";
    let mut first = 0;
    for round in 1..=10 {
        record(&mut shop, "orders", each, "interval '2 h'");
        let now: i64 = shop.value(size);
        println!("round {round}: {now} bytes with {each} events");
        if round == 1 {
            first = now;
        }
        assert!(now < first * 3 / 2, "{now} bytes in round {round}, {first} in the first");
        prune(&mut shop, 0);
        // What autovacuum does by and by.
        shop.client.batch_execute("VACUUM expiry.event").unwrap();
    }
    assert!(shop.value::<i64>(size) < first / 2);
}
