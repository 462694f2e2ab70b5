//! Which rows are due, and when: NULL, grace, zones, days, and the far end of time.

use std::time::Duration;

use pg_expiry_tests::serde_json::json;
use pg_expiry_tests::{Shop, cpu_time, db_error, wait_for_value, wait_until, worker_pids};

const SECOND: Duration = Duration::from_secs(1);

/// R03 (a): no deadline is no deadline in the past.
#[test]
fn order_without_a_deadline_is_never_due() {
    let mut shop = Shop::new();
    shop.fill(1..=3, "NULL");
    shop.fill(4..=6, "'infinity'");
    shop.fill(7..=9, "'-infinity'");
    shop.fill(10..=10, "now() - interval '1 s'");
    shop.settle();
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE id < 7 AND status = 'pending'"), 6);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE id > 6 AND status = 'cancelled'"), 4);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'"), 4);
    // What has no finite deadline has no lateness either.
    let odd = "SELECT count(*) FROM expiry.event WHERE deadline IS NULL <> ((key->>'id')::int < 10)
               OR lateness IS NULL <> (deadline IS NULL)";
    assert_eq!(shop.value::<i64>(odd), 0);
}

/// R03 (b, d): what is NULL or empty is refused and does not mean "at once" or "everything".
#[test]
fn empty_argument_or_setting_is_refused() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=3, "now() - interval '1 h'");
    let usual = "deadline => 'pay_by', predicate => $$status = 'pending'$$, cancel_function => 'cancel_order(bigint)'";
    for (wrong, sqlstate) in [
        (format!("'orders', {usual}, timeout => NULL"), "22004"),
        (format!("'orders', {usual}, timeout => ''"), "22007"),
        (format!("'orders', {usual}, timeout => '-1 s'"), "22023"),
        (format!("NULL, {usual}"), "22004"),
        (usual.replace("'pay_by'", "NULL").replace("deadline", "'orders', deadline"), "22004"),
        (usual.replace("'pay_by'", "''").replace("deadline", "'orders', deadline"), "42703"),
        (format!("'orders', {}", usual.replace("$$status = 'pending'$$", "NULL")), "22004"),
        (format!("'orders', {}", usual.replace("$$status = 'pending'$$", "''")), "42601"),
        (format!("'orders', {}", usual.replace("'cancel_order(bigint)'", "NULL")), "22004"),
        (format!("'orders', {}", usual.replace("'cancel_order(bigint)'", "''")), "42883"),
    ] {
        let error = db_error(shop.client.batch_execute(&format!("SELECT expiry.create_policy({wrong})")));
        assert_eq!(error.code().code(), sqlstate, "{wrong}: {error:?}");
    }
    for name in ["timeout", "lookahead", "batch_size", "enabled"] {
        let sql = format!("ALTER DATABASE {} SET pg_expiry.{name} = ''", shop.db.name);
        assert_eq!(db_error(shop.client.batch_execute(&sql)).code().code(), "22023", "{sql}");
    }
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.policy"), 0);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), 3);
}

/// R03 (c).
#[test]
fn nothing_is_cancelled_while_expiry_is_switched_off() {
    let mut shop = Shop::with_settings(&[("pg_expiry.enabled", "off")]);
    shop.create_policy("");
    shop.fill(1..=3, "now() - interval '1 h'");
    shop.wait_for_index();
    wait_until("the worker", 10 * SECOND, || worker_pids(&mut shop.client).pop());
    // That nothing happens is the claim: for two look-aheads.
    assert!(shop.listen().try_next(2 * SECOND).is_none());
    shop.assert_untouched(3);
    shop.set_for_database("pg_expiry.enabled", "on");
    shop.restart_workers();
    shop.settle();
    shop.assert_invariant();
}

/// R12: the deadline that is shown, and the grace after it.
#[test]
fn grace_is_added_to_the_stated_deadline() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", timeout => '1200 ms'");
    let mut listener = shop.listen();
    shop.fill(1..=5, "now() + id * interval '200 ms'");
    let heard = listener.take(5, 20 * SECOND);
    assert_eq!(
        shop.value::<i64>(
            "SELECT count(*) FROM orders o JOIN expiry.event e ON (key->>'id')::bigint = o.id
             WHERE stated_deadline = pay_by AND deadline = pay_by + interval '1200 ms'
               AND cancelled_at >= deadline AND occurred_at >= cancelled_at AND lateness = occurred_at - deadline"
        ),
        5
    );
    let as_text = "SELECT to_char(pay_by AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM orders WHERE id = 3";
    let stated: String = shop.value(as_text);
    assert_eq!(heard[2].json["stated_deadline"], json!(stated), "{}", heard[2].payload);
    shop.assert_invariant();
}

/// A shop whose deadlines are of another type.
fn shop_with_column(sql_type: &str) -> Shop {
    let mut shop = Shop::without_policy();
    let sql =
        format!("ALTER TABLE orders DROP COLUMN pay_by; ALTER TABLE orders ADD COLUMN pay_by {sql_type}");
    shop.client.batch_execute(&sql).unwrap();
    shop
}

fn refusal_of_policy(shop: &mut Shop, more: &str) -> String {
    let sql = format!(
        "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
             cancel_function => 'cancel_order(bigint)'{more})"
    );
    let error = db_error(shop.client.batch_execute(&sql));
    assert!(error.hint().is_some(), "{error:?}");
    error.code().code().to_owned()
}

/// R13: an end of the day in winter time for an order made in summer time; a local time that never was,
/// and one that was twice; several zones on one server.
#[test]
fn deadline_is_the_local_time_of_its_zone() {
    let mut shop = shop_with_column("timestamp");
    shop.client.batch_execute("ALTER TABLE orders ADD COLUMN zone text").unwrap();
    for zone in ["Europe/Berlin", "America/New_York"] {
        let sql = format!(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', time_zone => '{zone}', name => '{zone}',
                 predicate => $$status = 'pending' AND zone = '{zone}'$$, cancel_function => 'cancel_order(bigint)')"
        );
        shop.client.batch_execute(&sql).unwrap();
    }
    let cases = [
        (1, "Europe/Berlin", "2025-10-27 23:59", "2025-10-27 22:59Z"),
        (2, "America/New_York", "2025-03-09 02:30", "2025-03-09 07:30Z"),
        (3, "America/New_York", "2025-11-02 01:30", "2025-11-02 06:30Z"),
    ];
    for (id, zone, local, _) in cases {
        let sql = format!("INSERT INTO orders (id, zone, pay_by) VALUES ({id}, '{zone}', '{local}')");
        shop.client.batch_execute(&sql).unwrap();
    }
    for (id, zone, local, instant) in cases {
        let sql = format!(
            "SELECT deadline = '{instant}' FROM expiry.event WHERE (key->>'id')::int = {id} AND policy = '{zone}'"
        );
        wait_for_value(&mut shop.client, &sql, true);
        assert_eq!(shop.status(id), "cancelled", "{local} in {zone}");
    }
}

/// For each way in which a session or a server can have a zone: `check` with new workers.
fn with_foreign_zones(shop: &mut Shop, mut check: impl FnMut(&mut Shop, i64)) {
    let owner = format!("{}_owner", shop.db.name);
    let sql = format!(
        "CREATE ROLE {owner}; ALTER TABLE orders OWNER TO {owner}; ALTER TABLE stock OWNER TO {owner};
         ALTER FUNCTION cancel_order OWNER TO {owner}"
    );
    shop.client.batch_execute(&sql).unwrap();
    let database = shop.db.name.clone();
    let places = [
        format!("ALTER DATABASE {database} SET TimeZone = 'Asia/Tokyo'"),
        format!("ALTER DATABASE {database} SET TimeZone = 'UTC'"),
        format!("ALTER ROLE {owner} SET TimeZone = 'America/Los_Angeles'"),
        format!("ALTER ROLE {owner} IN DATABASE {database} SET TimeZone = 'Asia/Kathmandu'"),
        format!("ALTER DATABASE {database} SET DateStyle = 'SQL, DMY'"),
    ];
    for (n, place) in (1..).zip(places) {
        shop.client.batch_execute(&place).unwrap();
        shop.restart_workers();
        check(shop, n);
    }
}

/// R14: a date means the end of its day, in the policy's zone.
#[test]
fn date_is_over_when_its_day_is_over_whoever_asks() {
    let mut shop = shop_with_column("date");
    assert_eq!(refusal_of_policy(&mut shop, ""), "22023");
    assert_eq!(refusal_of_policy(&mut shop, ", time_zone => 'Mars/Olympus'"), "22023");
    shop.create_policy(", time_zone => 'Asia/Tokyo'");
    with_foreign_zones(&mut shop, |shop, n| {
        let first = n * 10;
        // Two days before today in Tokyo, to two after.
        shop.fill(
            first..=first + 4,
            &format!("(now() AT TIME ZONE 'Asia/Tokyo')::date + (id - {first})::int - 2"),
        );
        let overdue: i64 = shop.value(&format!(
            "SELECT count(*) FROM orders WHERE id >= {first} AND (pay_by + 1)::timestamp AT TIME ZONE 'Asia/Tokyo' <= now()"
        ));
        assert!(overdue >= 2, "{overdue}");
        let cancelled =
            format!("SELECT count(*) >= {overdue} FROM orders WHERE id >= {first} AND status = 'cancelled'");
        wait_for_value(&mut shop.client, &cancelled, true);
    });
    let early_or_wrong = "SELECT count(*) FROM orders o JOIN expiry.event e ON (key->>'id')::bigint = o.id
        WHERE deadline <> (pay_by + 1)::timestamp AT TIME ZONE 'Asia/Tokyo' OR cancelled_at < deadline";
    assert_eq!(shop.value::<i64>(early_or_wrong), 0);
    assert!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") >= 10);
}

/// R47: a column without a zone holds times of the policy's zone, whatever the server's, the database's
/// and the role's are.
#[test]
fn timestamp_without_zone_is_read_in_the_policys_zone() {
    let mut shop = shop_with_column("timestamp");
    assert_eq!(refusal_of_policy(&mut shop, ""), "22023");
    shop.create_policy(", time_zone => 'UTC'");
    with_foreign_zones(&mut shop, |shop, n| {
        shop.fill(n..=n, "(now() + interval '500 ms') AT TIME ZONE 'UTC'");
        let cancelled = format!("SELECT status FROM orders WHERE id = {n}");
        wait_for_value(&mut shop.client, &cancelled, "cancelled".to_owned());
    });
    let wrong = "SELECT count(*) FROM orders o JOIN expiry.event e ON (key->>'id')::bigint = o.id
        WHERE deadline <> pay_by AT TIME ZONE 'UTC' OR cancelled_at < deadline OR lateness > interval '10 s'";
    assert_eq!(shop.value::<i64>(wrong), 0);
}

/// R45: waits are wider than any integer of milliseconds, and no reason to be busy.
#[test]
fn far_deadline_is_neither_now_nor_in_the_way() {
    for lookahead in ["1s", "1min"] {
        let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", lookahead)]);
        shop.create_policy("");
        shop.wait_for_index();
        for (id, far) in (1..).zip(["30 days", "60 days", "100 years", "8000 years", "290000 years"]) {
            let sql = format!(
                "INSERT INTO orders (id, pay_by) VALUES ({id}, now() + interval '{far}'); SELECT expiry.wake()"
            );
            shop.client.batch_execute(&sql).unwrap();
        }
        let pid = shop.wait_for_worker();
        let before = cpu_time(pid);
        // That it does nothing is the claim: the listener hears nothing for three seconds.
        assert!(shop.listen().try_next(3 * SECOND).is_none());
        assert!(cpu_time(pid) - before < SECOND / 5, "{:?} of CPU in 3 s", cpu_time(pid) - before);
        let sql = "INSERT INTO orders (id, pay_by) VALUES (9, now() + interval '1 s'); SELECT expiry.wake()";
        shop.client.batch_execute(sql).unwrap();
        wait_for_value(&mut shop.client, "SELECT status FROM orders WHERE id = 9", "cancelled".to_owned());
        assert_eq!(worker_pids(&mut shop.client), [pid]);
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), 5);
        shop.assert_invariant();
    }
}
