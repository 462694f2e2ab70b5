//! Reminders (issue 7, point 7): an event when a pending row's deadline comes within an interval; once per row,
//! interval and deadline. That they survive what goes wrong is in `reminder_faults`.

use std::time::Duration;

use pg_expiry_tests::postgres::types::FromSqlOwned;
use pg_expiry_tests::serde_json::json;
use pg_expiry_tests::{Cluster, Db, Shop, wait_for_value, wait_until};

use super::events::assert_refused;
use super::tenants::Tenants;

const PATIENCE: Duration = Duration::from_secs(30);

/// Orders that are reminded for the sake of `wait_for_later` have ids from here on.
const LATER: i64 = 1_000_000;

/// A shop with reminders, whose worker has looked.
pub fn shop(more: &str) -> Shop {
    let mut shop = Shop::without_policy();
    shop.create_policy(more);
    wait_for_reminders(&mut shop);
    shop.wait_for_index();
    shop
}

/// From now on rows that are within the interval have begun there.
pub fn wait_for_reminders(shop: &mut Shop) {
    let known = "SELECT count(*) FROM expiry.policy p WHERE coalesce((SELECT count(DISTINCT b) FROM unnest(remind_before) b), 0)
                 <> (SELECT count(*) FROM expiry.reminder r WHERE r.policy = p.name)";
    wait_until("the first look", PATIENCE, || shop.value::<i64>(known) == 0);
}

/// `(order, seconds before, how often)`, but for those of `wait_for_later`.
pub fn reminders(shop: &mut Shop) -> Vec<(i64, f64, i64)> {
    let sql = format!(
        "SELECT (key ->> 'id')::bigint, (data ->> 'remind_before_s')::float8, count(*) FROM expiry.event
         WHERE kind = 'reminder' AND (key ->> 'id')::bigint < {LATER} GROUP BY 1, 2 ORDER BY 1, 2 DESC"
    );
    shop.client.query(&sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// Waits until exactly these have been given.
#[track_caller]
pub fn wait_for_reminders_of(shop: &mut Shop, expected: &[(i64, f64, i64)]) {
    wait_until(format_args!("reminders {expected:?}"), PATIENCE, || {
        let reminders = reminders(shop);
        if reminders == expected { Ok(()) } else { Err(reminders) }
    });
}

/// Waits for the reminder of an order that is placed now and comes within the interval after everything that
/// does so now: what has had no reminder then gets none.
#[track_caller]
pub fn wait_for_later(shop: &mut Shop, before: &str) {
    let sql = format!(
        "INSERT INTO orders (id, pay_by) SELECT greatest(max(id), {LATER}) + 1,
             clock_timestamp() + interval '{before}' + interval '3 s' FROM orders RETURNING id"
    );
    let id: i64 = shop.value(&sql);
    let seen = format!(
        "SELECT count(*) FROM expiry.event WHERE kind = 'reminder' AND key ->> 'id' = '{id}'
         AND data ->> 'remind_before_s' = extract(epoch FROM interval '{before}')::int::text"
    );
    wait_until("the later reminder", PATIENCE, || shop.value::<i64>(&seen) == 1);
}

fn one<T: FromSqlOwned>(shop: &mut Shop, expression: &str) -> T {
    shop.value(&format!("SELECT {expression} FROM expiry.event WHERE kind = 'reminder'"))
}

/// The record is the same pushed and read, at its instant and not before; then the order is cancelled as ever.
#[test]
fn order_is_reminded_and_then_cancelled() {
    let mut shop = shop(", timeout => '90 s', remind_before => '{10500 ms}'");
    let mut listener = shop.listen();
    shop.fill(1..=1, "clock_timestamp() - interval '77 s'");
    let heard = listener.next(PATIENCE).json;
    let times =
        |field: &str| format!("to_char({field} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')");
    let record = format!(
        "jsonb_build_object('v', 1, 'id', id, 'policy', 'orders', 'kind', 'reminder', 'key', '{{\"id\": \"1\"}}'::jsonb,
             'data', '{{\"remind_before_s\": 10.5}}'::jsonb, 'deadline', {}, 'stated_deadline', {}, 'occurred_at', {},
             'lateness_ms', extract(epoch FROM occurred_at - deadline) * 1000)",
        times("deadline"),
        times("stated_deadline"),
        times("occurred_at")
    );
    let mut read: pg_expiry_tests::serde_json::Value = one(&mut shop, &record);
    let (pushed_ms, read_ms) = (&heard["lateness_ms"], read["lateness_ms"].take());
    assert!((pushed_ms.as_f64().unwrap() - read_ms.as_f64().unwrap()).abs() < 0.001);
    read["lateness_ms"] = pushed_ms.clone();
    assert_eq!(heard, read);
    let in_time = "deadline - interval '10500 ms' <= occurred_at AND occurred_at < deadline
                   AND deadline = (SELECT pay_by FROM orders) + interval '90 s'";
    assert!(one::<bool>(&mut shop, in_time));

    assert_eq!(listener.next(PATIENCE).json["kind"], "cancelled");
    assert_eq!(reminders(&mut shop), [(1, 10.5, 1)]);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 2);
    assert!(listener.drain().is_empty());
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
}

/// R04: the worker sleeps until the reminder and not until its next look; the deadline may be far away.
#[test]
fn reminder_is_not_bound_to_the_lookahead() {
    let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "4s")]);
    shop.create_policy(", remind_before => '{1 hour}'");
    wait_for_reminders(&mut shop);
    shop.fill(1..=50, "clock_timestamp() + interval '1 hour 4100 ms' + id * interval '60 ms'");
    let count = "SELECT count(*) FROM expiry.event WHERE kind = 'reminder'";
    wait_until("50 reminders", PATIENCE, || shop.value::<i64>(count) == 50);
    let late = "SELECT min(late), max(late) FROM (
        SELECT (extract(epoch FROM occurred_at - (deadline - interval '1 hour')) * 1000)::float8 late FROM expiry.event) e";
    let row = shop.client.query_one(late, &[]).unwrap();
    let (first, last): (f64, f64) = (row.get(0), row.get(1));
    println!("reminders were late by {first:.2} to {last:.2} ms");
    // The bound is one of sanity, below the period of looking.
    assert!(first >= 0.0 && last < 3000.0, "{first} to {last} ms late");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass"), 2);
}

/// An instant that is nearer than the lookahead: `wake()` makes the worker see it in time.
#[test]
fn wake_shows_a_reminder_that_is_near() {
    let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "60s")]);
    shop.create_policy(", remind_before => '{1 hour}'");
    wait_for_reminders(&mut shop);
    shop.client
        .batch_execute(
            "BEGIN; INSERT INTO orders (id, pay_by) VALUES (1, clock_timestamp() + interval '1 hour 5 s');
             SELECT expiry.wake(); COMMIT",
        )
        .unwrap();
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1)]);
}

/// Paid, cancelled by somebody else, deleted: whoever is not pending any more gets none.
#[test]
fn order_that_is_not_pending_is_not_reminded() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.fill(1..=4, "clock_timestamp() + interval '1 hour 3 s'");
    assert!(shop.pay(1));
    shop.client
        .batch_execute("UPDATE orders SET status = 'cancelled' WHERE id = 2; DELETE FROM orders WHERE id = 3")
        .unwrap();
    wait_for_reminders_of(&mut shop, &[(4, 3600.0, 1)]);
    wait_for_later(&mut shop, "1 hour");
    assert_eq!(reminders(&mut shop), [(4, 3600.0, 1)]);
    // Set back after its reminder, with the same deadline: it has had it.
    assert!(shop.pay(4));
    shop.client.batch_execute("UPDATE orders SET status = 'pending' WHERE id = 4").unwrap();
    wait_for_later(&mut shop, "1 hour");
    assert_eq!(reminders(&mut shop), [(4, 3600.0, 1)]);
}

/// R16: an extended row is reminded anew; one that is moved within the interval is not, nor one whose old
/// deadline comes back.
#[test]
fn extended_order_is_reminded_anew() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.fill(1..=2, "clock_timestamp() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1), (2, 3600.0, 1)]);
    let old: String = shop.value("SELECT pay_by::text FROM orders WHERE id = 1");
    let extend = "UPDATE orders SET pay_by = clock_timestamp() + interval '1 hour 3 s' WHERE id = 1;
                  UPDATE orders SET pay_by = clock_timestamp() + interval '30 min' WHERE id = 2";
    shop.client.batch_execute(extend).unwrap();
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 2), (2, 3600.0, 1)]);
    let deadlines = "SELECT count(DISTINCT deadline) FROM expiry.event WHERE key ->> 'id' = '1'";
    assert_eq!(shop.value::<i64>(deadlines), 2);
    shop.client.batch_execute(&format!("UPDATE orders SET pay_by = '{old}' WHERE id = 1")).unwrap();
    wait_for_later(&mut shop, "1 hour");
    assert_eq!(reminders(&mut shop), [(1, 3600.0, 2), (2, 3600.0, 1)]);
}

/// Who begins within the interval is not reminded at once, whether the row was there before the policy, is new,
/// or was moved there.
#[test]
fn order_that_begins_inside_is_not_reminded() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=1, "now() + interval '59 min'");
    shop.create_policy(", remind_before => '{1 hour}'");
    wait_for_reminders(&mut shop);
    shop.fill(2..=2, "now() + interval '59 min'");
    shop.fill(3..=3, "now() + interval '2 hours'");
    shop.client.batch_execute("UPDATE orders SET pay_by = now() + interval '58 min' WHERE id = 3").unwrap();
    wait_for_later(&mut shop, "1 hour");
    assert_eq!(reminders(&mut shop), []);
}

/// With `remind_late` they are, each once, also when they are moved about.
#[test]
fn order_that_begins_inside_is_reminded_late() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=1, "now() + interval '59 min'");
    shop.create_policy(", remind_before => '{1 hour, 10 min}', remind_late => true");
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1)]);
    shop.fill(2..=2, "now() + interval '5 min'");
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1), (2, 3600.0, 1), (2, 600.0, 1)]);
    let old: String = shop.value("SELECT pay_by::text FROM orders WHERE id = 1");
    shop.client.batch_execute("UPDATE orders SET pay_by = now() + interval '58 min' WHERE id = 1").unwrap();
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 2), (2, 3600.0, 1), (2, 600.0, 1)]);
    shop.client.batch_execute(&format!("UPDATE orders SET pay_by = '{old}' WHERE id = 1")).unwrap();
    shop.fill(3..=3, "now() + interval '57 min'");
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 2), (2, 3600.0, 1), (2, 600.0, 1), (3, 3600.0, 1)]);
    // A deadline that has passed is no reminder's business.
    shop.fill(4..=4, "now() - interval '1 s'");
    shop.settle();
    wait_for_later(&mut shop, "10 min");
    assert_eq!(reminders(&mut shop).len(), 4);
    // Without it from now on, and what has had its reminder has had it.
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', remind_late => false)").unwrap();
    wait_for_later(&mut shop, "1 hour");
    shop.fill(5..=5, "now() + interval '57 min'");
    wait_for_later(&mut shop, "1 hour");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', remind_late => true)").unwrap();
    wait_for_reminders_of(
        &mut shop,
        &[(1, 3600.0, 2), (2, 3600.0, 1), (2, 600.0, 1), (3, 3600.0, 1), (5, 3600.0, 1)],
    );
}

/// More rows than a batch, found page by page, in both ways.
#[test]
fn many_orders_are_each_reminded_once() {
    for late in [false, true] {
        let mut shop =
            shop(&format!(", remind_before => '{{1 hour}}', remind_late => {late}, batch_size => 7"));
        let inside = if late { "- interval '10 min'" } else { "+ interval '3 s'" };
        // Some at one and the same instant, more than a batch of them.
        shop.fill(1..=100, &format!("now() + interval '1 hour' {inside} + id / 30 * interval '50 ms'"));
        let expected: Vec<_> = (1..=100).map(|id| (id, 3600.0, 1)).collect();
        wait_for_reminders_of(&mut shop, &expected);
        wait_for_later(&mut shop, "1 hour");
        assert_eq!(reminders(&mut shop), expected);
        let in_order = "SELECT bool_and(deadline >= before) FROM (
            SELECT deadline, lag(deadline) OVER (ORDER BY id) before FROM expiry.event WHERE (key ->> 'id')::int < 1000) e";
        assert!(shop.value::<bool>(in_order));
    }
}

/// Each interval by itself; the longest first.
#[test]
fn several_intervals_are_reminded_each() {
    let mut shop = shop(", remind_before => '{5500 ms, 1 hour, 60 min, 10 s}'");
    let mut listener = shop.listen();
    shop.fill(1..=1, "clock_timestamp() + interval '13 s'");
    shop.fill(2..=2, "clock_timestamp() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut shop, &[(1, 10.0, 1), (1, 5.5, 1), (2, 3600.0, 1)]);
    let heard: Vec<_> = listener.take(4, PATIENCE).into_iter().map(|heard| heard.json).collect();
    let of_first: Vec<_> = heard.iter().filter(|json| json["key"] == json!({ "id": "1" })).collect();
    let said: Vec<_> = of_first.iter().map(|json| (&json["kind"], &json["data"])).collect();
    assert_eq!(said[0], (&json!("reminder"), &json!({ "remind_before_s": 10 })));
    assert_eq!(said[1], (&json!("reminder"), &json!({ "remind_before_s": 5.5 })));
    assert_eq!(said[2].0, "cancelled");
}

/// A paused policy gives none; when it goes on, those whose deadline is still to come are made up for.
#[test]
fn paused_policy_gives_no_reminders() {
    let mut shop = shop(", remind_before => '{1 hour, 2 s}'");
    shop.client.batch_execute("SELECT expiry.pause('orders')").unwrap();
    let gone = "SELECT count(*) FROM expiry.workers WHERE database = current_database() AND pid IS NOT NULL";
    wait_for_value(&mut shop.client, gone, 0_i64);
    shop.fill(1..=1, "clock_timestamp() + interval '1 hour 200 ms'");
    shop.fill(2..=2, "clock_timestamp() + interval '2200 ms'");
    let passed = "SELECT (SELECT pay_by FROM orders WHERE id = 2) < clock_timestamp()";
    wait_for_value(&mut shop.client, passed, true);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 0);
    shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1)]);
    shop.wait_for_cancelled(1);
    assert_eq!(reminders(&mut shop), [(1, 3600.0, 1)]);
    shop.assert_invariant();
}

/// Which intervals there are can be changed. A new one begins with what comes within it from then on, also
/// when it has been there before; nothing is left behind by one that has gone.
#[test]
fn intervals_come_and_go() {
    let mut shop = shop("");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.reminder"), 0);
    shop.fill(1..=1, "now() + interval '59 min'");
    let alter = |shop: &mut Shop, intervals: &str| {
        let sql = format!("SELECT expiry.alter_policy('orders', remind_before => '{intervals}')");
        shop.client.batch_execute(&sql).unwrap();
        wait_for_reminders(shop);
    };
    alter(&mut shop, "{1 hour, 2 hours}");
    shop.fill(2..=2, "clock_timestamp() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut shop, &[(2, 3600.0, 1)]);
    alter(&mut shop, "{2 hours}");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.reminded"), 0);
    shop.fill(3..=3, "clock_timestamp() + interval '59 min'");
    alter(&mut shop, "{1 hour}");
    wait_for_later(&mut shop, "1 hour");
    assert_eq!(reminders(&mut shop), [(2, 3600.0, 1)]);
    alter(&mut shop, "{}");
    let left = "SELECT (SELECT count(*) FROM expiry.reminder) + (SELECT count(*) FROM expiry.reminded)";
    wait_for_value(&mut shop.client, left, 0_i64);
    // A policy that goes takes all of it along.
    alter(&mut shop, "{1 hour}");
    wait_for_later(&mut shop, "1 hour");
    assert!(shop.value::<i64>(left) >= 2);
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    assert_eq!(shop.value::<i64>(left), 0);
}

/// Issue 7: no table of ours grows without bound.
#[test]
fn reminders_of_passed_deadlines_are_forgotten() {
    let mut shop = shop(", remind_before => '{1 s}'");
    shop.fill(1..=1500, "clock_timestamp() + interval '2 s'");
    shop.wait_for_cancelled(1500);
    assert_eq!(reminders(&mut shop).len(), 1500);
    wait_until("an empty table", 2 * PATIENCE, || {
        shop.value::<i64>("SELECT count(*) FROM expiry.reminded") == 0
    });
    shop.assert_invariant();
}

/// The parameter, the setting of the same name, and a policy that wants neither.
#[test]
fn setting_stands_in_for_what_is_not_given() {
    let settings = [("pg_expiry.remind_before", "1 hour, 2 s"), ("pg_expiry.remind_late", "on")];
    let mut shop = Shop::with_settings(&settings);
    shop.create_policy("");
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.reminder", 2_i64);
    shop.fill(1..=1, "now() + interval '59 min'");
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1)]);
    assert!(shop.value::<bool>("SELECT remind_before IS NULL AND remind_late IS NULL FROM expiry.policy"));
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', remind_before => '{}')").unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.reminder", 0_i64);

    let mut wrong = Shop::without_policy();
    wrong.create_policy("");
    wrong.wait_for_worker();
    wrong.set_for_database("pg_expiry.remind_before", "an hour");
    let reason = "SELECT state || ' ' || reason FROM expiry.status";
    wait_until("a stopped policy", PATIENCE, || {
        let reason = wrong.db.connect().query_one(reason, &[]).unwrap().get::<_, Option<String>>(0);
        match reason {
            Some(reason) if reason.starts_with("stopped") && reason.contains("remind_before") => Ok(()),
            reason => Err(reason),
        }
    });
}

/// One index for each partition, and the deadlines of all of them in order.
#[test]
fn rows_of_partitions_are_reminded() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE TABLE orders (id bigint, shop int, status text NOT NULL DEFAULT 'pending', pay_by timestamptz,
                 cancelled_at timestamptz, PRIMARY KEY (shop, id)) PARTITION BY LIST (shop);
             CREATE TABLE orders_1 PARTITION OF orders FOR VALUES IN (1);
             CREATE TABLE orders_2 PARTITION OF orders FOR VALUES IN (2);
             CREATE FUNCTION cancel_order(o orders) RETURNS void LANGUAGE sql AS
                 $$ UPDATE orders SET status = 'cancelled' WHERE id = o.id AND shop = o.shop $$;
             SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'cancel_order(orders)', remind_before => '{1 hour}', batch_size => 3)",
        )
        .unwrap();
    let mut shop = Shop { client, db };
    wait_for_reminders(&mut shop);
    let fill = "INSERT INTO orders (id, shop, pay_by)
                SELECT id, id % 2 + 1, now() + interval '1 hour 3 s' + id * interval '20 ms' FROM generate_series(1, 20) id";
    shop.client.batch_execute(fill).unwrap();
    let expected: Vec<_> = (1..=20).map(|id| (id, 3600.0, 1)).collect();
    wait_for_reminders_of(&mut shop, &expected);
    let keys = "SELECT count(DISTINCT key) FROM expiry.event WHERE key ? 'shop' AND key ? 'id'";
    assert_eq!(shop.value::<i64>(keys), 20);
}

/// R14: a date means the end of that day in the policy's zone, and many rows have the same.
#[test]
fn rows_with_a_date_are_reminded() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL DEFAULT 'pending', valid_thru date);
             CREATE FUNCTION cancel_orders(ids int[]) RETURNS void LANGUAGE sql AS
                 $$ UPDATE orders SET status = 'cancelled' WHERE id = ANY (ids) $$;
             INSERT INTO orders SELECT id, 'pending', (now() AT TIME ZONE 'Asia/Tokyo')::date + id / 30 FROM generate_series(1, 89) id",
        )
        .unwrap();
    // The end of tomorrow comes within the interval in 15 seconds.
    let create = "SELECT expiry.create_policy('orders', deadline => 'valid_thru', time_zone => 'Asia/Tokyo', timeout => '1 day',
        predicate => $$status = 'pending'$$, cancel_function => 'cancel_orders(int[])', batch_size => 4,
        remind_before => ARRAY[((now() AT TIME ZONE 'Asia/Tokyo')::date + 3)::timestamp AT TIME ZONE 'Asia/Tokyo' - now() - interval '15 s'])";
    client.batch_execute(create).unwrap();
    let mut shop = Shop { client, db };
    wait_for_reminders(&mut shop);
    let of = "SELECT coalesce(array_agg((key ->> 'id')::int ORDER BY (key ->> 'id')::int), '{}') FROM expiry.event";
    let expected: Vec<i32> = (30..=59).collect();
    wait_until("reminders of one day", PATIENCE, || shop.value::<Vec<i32>>(of) == expected);
    let deadline = "SELECT count(*) FROM expiry.event WHERE deadline = ((SELECT valid_thru FROM orders WHERE id = 30) + 2)::timestamp AT TIME ZONE 'Asia/Tokyo'";
    assert_eq!(shop.value::<i64>(deadline), 30);
}

/// An integer column, and a timeout that turning round does not keep exact.
#[test]
fn rows_with_an_epoch_are_reminded() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL DEFAULT 'pending', created_ms bigint);
             CREATE FUNCTION cancel_orders(ids int[]) RETURNS void LANGUAGE sql AS
                 $$ UPDATE orders SET status = 'cancelled' WHERE id = ANY (ids) $$;
             INSERT INTO orders SELECT id, 'pending', extract(epoch FROM now() - interval '5 days' + id * interval '1 s')::numeric * 1000
             FROM generate_series(1, 3600) id",
        )
        .unwrap();
    // The first of them comes within the interval in 15 seconds.
    let create = "SELECT expiry.create_policy('orders', deadline => 'created_ms', epoch => 'ms', timeout => '1 month',
        predicate => $$status = 'pending'$$, cancel_function => 'cancel_orders(int[])',
        remind_before => ARRAY[(SELECT to_timestamp(created_ms / 1000.0) + interval '1 month' - now() - interval '15 s'
                                FROM orders WHERE id = 1)])";
    client.batch_execute(create).unwrap();
    let mut shop = Shop { client, db };
    wait_for_reminders(&mut shop);
    let third = "SELECT count(*) FROM expiry.event WHERE key ->> 'id' = '3'";
    wait_until("the third reminder", PATIENCE, || shop.value::<i64>(third) == 1);
    let wrong = "SELECT count(*) FROM expiry.event e FULL JOIN orders o ON o.id = (key ->> 'id')::int
                 WHERE o.id <= 3 AND (e.id IS NULL OR deadline <> to_timestamp(created_ms / 1000.0) + interval '1 month'
                     OR occurred_at < deadline - (SELECT remind_before[1] FROM expiry.policy) OR stated_deadline IS NULL)
                    OR o.id > 120 AND e.id IS NOT NULL";
    assert_eq!(shop.value::<i64>(wrong), 0);
}

#[test]
fn notifications_are_packed_or_off() {
    let mut packed = shop(", remind_before => '{1 hour}', notify => 'batch'");
    let mut listener = packed.listen();
    packed.fill(1..=40, "now() + interval '1 hour 3 s'");
    let heard = listener.next(PATIENCE).json;
    let events = heard["events"].as_array().unwrap();
    assert!(events.len() > 1 && events.iter().all(|event| event["kind"] == "reminder"), "{heard}");

    let mut silent = shop(", remind_before => '{1 hour}', notify => 'off'");
    let mut listener = silent.listen();
    silent.fill(1..=1, "now() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut silent, &[(1, 3600.0, 1)]);
    assert!(listener.drain().is_empty());
}

/// What `starts_at` leaves alone is not reminded of what will not happen.
#[test]
fn rows_before_the_start_are_not_reminded() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.client
        .batch_execute(
            "BEGIN; INSERT INTO orders (id, pay_by) SELECT n, now() + interval '1 hour 3 s' + n * interval '1 s' FROM generate_series(1, 2) n;
             SELECT expiry.alter_policy('orders', starts_at => (SELECT pay_by FROM orders WHERE id = 2)); COMMIT",
        )
        .unwrap();
    wait_for_reminders_of(&mut shop, &[(2, 3600.0, 1)]);
    wait_for_later(&mut shop, "1 hour");
    assert_eq!(reminders(&mut shop), [(2, 3600.0, 1)]);
}

/// The owner's rights and rows; his events are seen by whoever may act for him, and what we note by nobody.
#[test]
fn reminders_are_the_owners() {
    let mut tenants = Tenants::new(2, ", remind_before => '{1 hour}'");
    wait_for_value(&mut tenants.superuser, "SELECT count(*) FROM expiry.reminder", 2_i64);
    tenants.fill(0, 1..=3, "clock_timestamp() + interval '1 hour 3 s'");
    let count = "SELECT count(*) FROM expiry.event WHERE kind = 'reminder'";
    wait_for_value(&mut tenants.superuser, count, 3_i64);
    let mut owner = tenants.connect(0);
    let mut other = tenants.connect(1);
    assert_eq!(owner.query("SELECT FROM expiry.event", &[]).unwrap().len(), 3);
    assert_eq!(other.query("SELECT FROM expiry.event", &[]).unwrap().len(), 0);
    for table in ["expiry.reminder", "expiry.reminded"] {
        assert_refused(&mut owner, &format!("SELECT FROM {table}"), "42501");
        assert_refused(&mut owner, &format!("DELETE FROM {table}"), "42501");
    }
}

/// Read, not locked: neither waits for the other.
#[test]
fn reminder_waits_for_no_row() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.fill(1..=2, "clock_timestamp() + interval '1 hour 3 s'");
    let mut paying = shop.db.connect();
    paying.batch_execute("BEGIN; SELECT FROM orders WHERE id = 1 FOR UPDATE").unwrap();
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1), (2, 3600.0, 1)]);
    paying.batch_execute("UPDATE orders SET status = 'paid' WHERE id = 1; COMMIT").unwrap();
}

/// The cost goes with the rows that come within the interval, not with all that are pending.
#[test]
fn rows_that_are_far_away_are_not_read() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=50_000, "now() + interval '1 day' + id * interval '1 s'");
    shop.fill(50_001..=60_000, "now() + interval '30 min'");
    shop.client.batch_execute("ANALYZE orders").unwrap();
    shop.create_policy(", remind_before => '{1 hour}'");
    wait_for_reminders(&mut shop);
    wait_for_later(&mut shop, "1 hour");
    let read =
        "SELECT (seq_tup_read + idx_tup_fetch)::int8 FROM pg_stat_user_tables WHERE relname = 'orders'";
    let before: i64 = shop.value(read);
    shop.fill(60_001..=60_020, "clock_timestamp() + interval '1 hour 3 s' + (id - 60000) * interval '50 ms'");
    let count = "SELECT count(*) FROM expiry.event WHERE kind = 'reminder' AND (key ->> 'id')::int BETWEEN 60001 AND 60020";
    wait_until("20 reminders", PATIENCE, || shop.value::<i64>(count) == 20);
    // Statistics are told when the worker is idle.
    wait_for_later(&mut shop, "1 hour");
    let rows = shop.value::<i64>(read) - before;
    println!("{rows} rows read for 20 reminders");
    assert!((20..2000).contains(&rows), "{rows} rows read for 20 reminders");
}

/// Without a worker, `CALL run()` reminds: of what has come within the interval since the last run.
#[test]
fn run_by_hand_reminds() {
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy(", remind_before => '{1 hour}'");
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    shop.fill(1..=20, "clock_timestamp() + interval '1 hour 300 ms'");
    shop.fill(21..=21, "now() + interval '59 min'");
    wait_until("all to be reminded", PATIENCE, || {
        shop.client.batch_execute("CALL expiry.run('orders')").unwrap();
        reminders(&mut shop).len() == 20
    });
    // Begun inside since the last run.
    shop.fill(22..=22, "now() + interval '59 min'");
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(reminders(&mut shop), (1..=20).map(|id| (id, 3600.0, 1)).collect::<Vec<_>>());
    shop.client
        .batch_execute("SELECT expiry.alter_policy('orders', remind_late => true); CALL expiry.run()")
        .unwrap_err();
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', remind_late => true)").unwrap();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(reminders(&mut shop), (1..=22).map(|id| (id, 3600.0, 1)).collect::<Vec<_>>());
}
