//! Errors that are nobody's fault: whoever keeps meeting them is asked again, less and less often, uses up no
//! attempt, and holds up nobody else.

use std::time::{Duration, Instant};

use pg_expiry_tests::{Shop, cpu_time, wait_for_value, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

const CANCEL: &str =
    "UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
    UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id";

/// A shop whose cancel function counts its calls, in a sequence since that does not roll back.
fn shop_that_counts(before: &str) -> Shop {
    let mut shop = Shop::without_policy();
    shop.client.batch_execute("CREATE SEQUENCE calls").unwrap();
    shop.replace_cancel_order(&format!("{before}; {CANCEL}"));
    shop
}

fn calls(shop: &mut Shop) -> i64 {
    shop.value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM calls")
}

/// Counts calls over some time: here the time is what it is about.
fn calls_within(shop: &mut Shop, seconds: f64) -> i64 {
    let before = calls(shop);
    shop.client.execute("SELECT pg_sleep($1)", &[&seconds]).unwrap();
    calls(shop) - before
}

/// Whatever transient error a function raises by itself, every time.
#[test]
fn row_that_always_collides_is_asked_seldom() {
    let mut shop = shop_that_counts(
        "IF order_id <= 3 THEN
             PERFORM nextval('calls');
             RAISE 'not now' USING ERRCODE = (ARRAY['40001', '55P03', '57014'])[order_id];
         END IF",
    );
    shop.fill(1..=100, "now() - interval '1 min' + id * interval '1 ms'");
    shop.create_policy("");
    shop.wait_for_cancelled(97);
    wait_until("some attempts", PATIENCE, || calls(&mut shop) >= 24);
    let more = calls_within(&mut shop, 2.0);
    assert!((1..=9).contains(&more), "{more} calls for three rows in two seconds");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    wait_for_value(
        &mut shop.client,
        "SELECT last_error LIKE 'not now (SQLSTATE %' FROM expiry.progress",
        true,
    );
    // They hold up nobody, and go when they can.
    shop.due(200, Duration::from_secs(1));
    wait_for_value(&mut shop.client, "SELECT status FROM orders WHERE id = 200", "cancelled".to_owned());
    shop.replace_cancel_order(
        "UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id",
    );
    shop.wait_for_cancelled(101);
    shop.assert_invariant();
}

/// All of them at once, and each error takes no time: the worker does not take the processor for that.
#[test]
fn worker_does_not_spin_when_nothing_but_collisions_happens() {
    let mut shop = shop_that_counts("PERFORM nextval('calls'); LOCK TABLE till IN EXCLUSIVE MODE NOWAIT");
    shop.client.batch_execute("CREATE TABLE till ()").unwrap();
    shop.fill(1..=5000, "now() - interval '1 min' + id * interval '1 ms'");
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; LOCK TABLE till").unwrap();
    shop.create_policy("");
    wait_until("many attempts", PATIENCE, || calls(&mut shop) >= 150);
    let worker = shop.wait_for_worker();
    let before = cpu_time(worker);
    let begun = Instant::now();
    calls_within(&mut shop, 2.0);
    let share = (cpu_time(worker) - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    assert!(share < 0.4, "the worker takes {:.0} % of a processor", share * 100.0);
    holder.batch_execute("COMMIT").unwrap();
    shop.wait_for_cancelled(5000);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    shop.assert_invariant();
}

/// A hundred rows need a lock that somebody holds for minutes. Waiting for it costs half a second at most
/// once, not for every row.
#[test]
fn rows_that_need_a_lock_do_not_hold_up_the_others() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    shop.client.batch_execute("INSERT INTO stock VALUES (2, 0)").unwrap();
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; UPDATE stock SET qty = qty WHERE sku = 2").unwrap();
    let orders = "INSERT INTO orders (id, sku, pay_by) SELECT id, CASE WHEN id <= 100 THEN 2 ELSE 1 END,
        now() - interval '1 min' + id * interval '1 ms' FROM generate_series(1, 200) id RETURNING now()";
    let begun: f64 =
        shop.value(&format!("WITH o AS ({orders}) SELECT extract(epoch FROM now())::float8 FROM o LIMIT 1"));
    shop.wait_for_cancelled(100);
    let end: f64 = shop.value("SELECT extract(epoch FROM max(occurred_at))::float8 FROM expiry.event");
    let took = end - begun;
    println!("100 rows behind 100 that need a lock were cancelled in {took:.1} s");
    assert!(took < 20.0, "{took} s");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'cancelled' AND id <= 100"), 0);
    // Half a second for each of a hundred is 50 s. The same for those that become due later.
    shop.fill(201..=210, "now()");
    wait_for_value(
        &mut shop.client,
        "SELECT count(*) FROM orders WHERE status = 'pending' AND id > 100",
        0_i64,
    );
    holder.batch_execute("COMMIT").unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'pending'", 0_i64);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    assert_eq!(shop.value::<i64>("SELECT sum(qty) - 1000000 FROM stock"), 210);
}

/// pg_cancel_backend() on a worker that is inside a call, again and again.
#[test]
fn cancelled_calls_are_repeated_and_not_counted() {
    const TIMES: i64 = 10;
    let mut shop = shop_that_counts("PERFORM nextval('calls'), pg_sleep(600)");
    shop.set_for_database("pg_expiry.cancel_timeout", "10min");
    shop.due(1, Duration::from_secs(1));
    shop.create_policy(", max_attempts => 2");
    let asleep = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
        WHERE backend_type = 'pg_expiry worker' AND datname = current_database() AND wait_event = 'PgSleep'";
    for call in 1..=TIMES {
        wait_until("a call", PATIENCE, || calls(&mut shop) == call);
        if call == TIMES {
            shop.replace_cancel_order(CANCEL);
        }
        wait_until("it to be asleep", PATIENCE, || shop.client.execute(asleep, &[]).unwrap() > 0);
    }
    shop.wait_for_cancelled(1);
    assert_eq!(calls(&mut shop), TIMES);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    shop.assert_invariant();
}
