//! How late: never early, and no later than the wake-up and the commit, whatever comes in between.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, wait_for_value, worker_pids};

const SECOND: Duration = Duration::from_secs(1);

/// Milliseconds by which the cancelled orders were late, ascending.
fn lateness_ms(shop: &mut Shop) -> Vec<f64> {
    let sql = "SELECT (extract(epoch FROM cancelled_at - pay_by) * 1000)::float8 FROM orders
               WHERE status = 'cancelled' ORDER BY 1";
    shop.client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Waits for so many cancelled orders. None early; the bound is one of sanity, far below any period of looking.
#[track_caller]
fn assert_punctual(shop: &mut Shop, orders: usize, bound_ms: f64) {
    shop.wait_for_cancelled(orders as i64);
    let late = lateness_ms(shop);
    assert!(late[0] >= 0.0, "an order was cancelled {} ms early", -late[0]);
    let last = late[orders - 1];
    println!(
        "lateness of {orders}: p50 {:.2} ms, p99 {:.2} ms, max {last:.2} ms",
        late[orders / 2],
        late[orders * 99 / 100]
    );
    assert!(last < bound_ms, "{last} ms late");
}

/// Issue 2: lateness of 100 orders 20 ms apart. Their time-outs are longer than the lookahead, so none
/// may be as late as that.
#[test]
fn order_is_cancelled_at_its_deadline() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    shop.fill(1..=100, "now() + interval '1500 ms' + id * interval '20 ms'");
    assert_punctual(&mut shop, 100, 1000.0);
    shop.assert_invariant();
}

/// R04: the worker sleeps until the deadline and not until its next look.
#[test]
fn lateness_is_not_bound_to_the_lookahead() {
    let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "4s")]);
    shop.create_policy("");
    shop.wait_for_index();
    shop.fill(1..=50, "now() + interval '4100 ms' + id * interval '60 ms'");
    assert_punctual(&mut shop, 50, 3000.0);
    shop.assert_invariant();
}

/// R07: a long deadline does not hold up shorter ones that come later.
#[test]
fn long_deadline_blocks_no_shorter_one() {
    let mut shop = Shop::new();
    shop.order(1, 600 * SECOND);
    let pid = shop.wait_for_worker();
    shop.order(2, SECOND);
    let sql = "UPDATE orders SET pay_by = now() + interval '500 ms' WHERE id = 1";
    shop.client.batch_execute(sql).unwrap();
    assert_punctual(&mut shop, 2, 5000.0);
    // The whole shop changes its mind.
    shop.fill(3..=1002, "now() + interval '60 min'");
    let sql = "UPDATE orders SET pay_by = now() + interval '1200 ms' WHERE id > 2";
    shop.client.batch_execute(sql).unwrap();
    assert_punctual(&mut shop, 1002, 10_000.0);
    assert_eq!(worker_pids(&mut shop.client), [pid], "no restart was needed");
    shop.assert_invariant();
}

/// R11: who pays late is told so; who reopens an order decides when it is due again.
#[test]
fn reopened_order_is_cancelled_again_at_its_new_deadline() {
    let mut shop = Shop::new();
    shop.fill(1..=2, "now()");
    shop.settle();
    assert!(!shop.pay(1) && !shop.pay(2), "a cancelled order was paid");
    let reopen = "UPDATE orders SET status = 'pending', pay_by = now() + interval '1 h' WHERE id = 1;
                  UPDATE orders SET status = 'pending' WHERE id = 2";
    shop.client.batch_execute(reopen).unwrap();
    wait_for_value(&mut shop.client, "SELECT status FROM orders WHERE id = 2", "cancelled".to_owned());
    let events =
        "SELECT key->>'id', rank() OVER (PARTITION BY key ORDER BY id) FROM expiry.event ORDER BY id";
    let events = shop.client.query(events, &[]).unwrap();
    let events: Vec<(String, i64)> = events.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(events[2..], [("2".to_owned(), 2)], "{events:?}");
    assert_eq!(shop.status(1), "pending");
    assert_eq!(shop.value::<i32>("SELECT qty - 1000000 FROM stock"), 3);
}

/// R16 (c): not only new rows matter.
#[test]
fn paid_order_that_is_set_back_is_cancelled_once() {
    let mut shop = Shop::new();
    shop.order(1, 3600 * SECOND);
    assert!(shop.pay(1));
    let sql = "UPDATE orders SET status = 'pending', pay_by = now() + interval '500 ms' WHERE id = 1";
    shop.client.batch_execute(sql).unwrap();
    assert_punctual(&mut shop, 1, 5000.0);
    shop.assert_invariant();
}

/// R27: nobody but the worker and an idle listener is there to push the notification along, and the
/// worker's clock does not stand still.
#[test]
fn event_arrives_without_any_other_traffic() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.client.batch_execute("ALTER TABLE orders ADD COLUMN said_now timestamptz").unwrap();
    shop.replace_cancel_order(
        "UPDATE orders SET status = 'cancelled', said_now = now(), cancelled_at = clock_timestamp() WHERE id = order_id",
    );
    shop.create_policy("");
    shop.wait_for_index();
    let mut listener = shop.listen();
    shop.wait_for_worker();
    shop.order(1, 3 * SECOND);
    let Shop { db, client } = shop;
    drop(client);
    let heard = listener.next(20 * SECOND);
    let mut shop = Shop { client: db.connect(), db };
    let occurred_at: String = shop.value("SELECT to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM expiry.event");
    assert_eq!(heard.json["occurred_at"], occurred_at.as_str());
    let delay_ms: f64 = shop
        .client
        .query_one(
            "SELECT extract(epoch FROM $1::timestamptz - occurred_at)::float8 * 1000 FROM expiry.event",
            &[&heard.at],
        )
        .unwrap()
        .get(0);
    println!("heard after {delay_ms:.2} ms");
    assert!((0.0..1000.0).contains(&delay_ms), "heard after {delay_ms} ms");
    let clocks = "SELECT said_now BETWEEN cancelled_at - interval '1 s' AND cancelled_at AND cancelled_at >= pay_by FROM orders";
    assert!(shop.value::<bool>(clocks));
}

/// R49: a backlog is worked off batch by batch, and other policies of the same owner take turns with it.
#[test]
fn backlog_of_one_policy_makes_no_other_late() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE hold (hold_id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'held', until timestamptz);
             CREATE FUNCTION release(it bigint) RETURNS void LANGUAGE sql AS $$
                 SELECT pg_sleep(0.002); UPDATE hold SET state = 'free' WHERE hold_id = it $$;
             INSERT INTO hold SELECT id, 'held', now() - interval '1 h' FROM generate_series(1, 20000) id;
             SELECT expiry.create_policy('hold', deadline => 'until', predicate => $$state = 'held'$$,
                 cancel_function => 'release')",
        )
        .unwrap();
    shop.create_policy("");
    shop.wait_for_index();
    wait_for_value(&mut shop.client, "SELECT count(*) > 0 FROM hold WHERE state = 'free'", true);
    shop.fill(1..=20, "now() + interval '1200 ms' + id * interval '100 ms'");
    assert_punctual(&mut shop, 20, 2000.0);
    let left = shop.value::<i64>("SELECT count(*) FROM hold WHERE state = 'held'");
    assert!(left > 0, "the backlog was over too soon");
    shop.assert_invariant();
}
