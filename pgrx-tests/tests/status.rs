//! Looking at a policy: preview, status, lateness.

use std::time::Duration;

use pg_expiry_tests::{Shop, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Until the only policy is in this state, for a reason with this SQLSTATE.
pub fn wait_for_state(shop: &mut Shop, state: &str, sqlstate: &str) {
    wait_until(format_args!("state {state} {sqlstate}"), 10 * SECOND, || {
        let row =
            shop.client.query_one("SELECT state, coalesce(reason, '') FROM expiry.status", &[]).unwrap();
        let (is, reason): (String, String) = (row.get(0), row.get(1));
        let is_so = is == state && reason.contains(sqlstate);
        if is_so { Ok(()) } else { Err(format!("{is}: {reason}")) }
    });
}

#[test]
fn backlog_is_counted_to_ten_thousand() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=10_001, "now() - interval '1 day'");
    let (mut client, notices) = shop.db.connect_with_notices("postgres");
    let create = |more: &str| {
        format!(
            "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)', \
             paused => true{more})"
        )
    };
    client.batch_execute(&create("")).unwrap();
    assert!(notices.take("NOTICE")[0].message().starts_with("10000+ rows"));
    client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    client.batch_execute(&create(", starts_at => now()")).unwrap();
    assert!(notices.take("NOTICE").is_empty(), "none since starts_at");
}

#[test]
fn preview_shows_and_touches_nothing() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.due(1, 2 * SECOND);
    shop.due(2, 60 * SECOND);
    shop.order(3, 60 * SECOND);
    shop.client.batch_execute("BEGIN READ ONLY").unwrap();
    let rows = shop
        .client
        .query(
            "SELECT v.key->>'id', v.deadline = o.pay_by, v.overdue BETWEEN '0 s' AND '120 s'
             FROM expiry.preview('orders') v JOIN orders o ON o.id::text = v.key->>'id' ORDER BY v.deadline",
            &[],
        )
        .unwrap();
    shop.client.batch_execute("COMMIT").unwrap();
    let rows: Vec<(String, bool, bool)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(rows, [("2".to_owned(), true, true), ("1".to_owned(), true, true)]);
    let limited: i64 = shop.value("SELECT count(*) FROM expiry.preview('orders', 1)");
    assert_eq!((limited, shop.status(1)), (1, "pending".to_owned()));
}

#[test]
fn status_answers_while_the_table_is_locked() {
    let mut shop = Shop::new();
    shop.order(1, 60 * SECOND);
    wait_for_state(&mut shop, "active", "");
    wait_for_value(
        &mut shop.client,
        "SELECT backlog || ' ' || (next_deadline IS NOT NULL)::text FROM expiry.status",
        "0 true".to_owned(),
    );
    let mut locker = shop.db.connect();
    locker.batch_execute("BEGIN; LOCK TABLE orders").unwrap();
    shop.client.batch_execute("SET lock_timeout = '100ms'").unwrap();
    let row = shop.client.query_one("SELECT backlog IS NULL, index_state FROM expiry.status", &[]).unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, &str>(1)), (true, "valid"));
}

#[test]
fn lateness_is_summed_up() {
    let mut shop = Shop::new();
    shop.order(1, SECOND);
    shop.due(2, 100 * SECOND);
    shop.settle();
    wait_for_value(&mut shop.client, "SELECT cancelled FROM expiry.status", 2_i64);
    let row = shop.client.query_one(
        "SELECT lateness_p50_ms < 1000, lateness_p99_ms > 100000 AND lateness_p99_ms <= lateness_max_ms, backlog,
                (SELECT sum(count)::bigint FROM expiry.lateness), (SELECT max(bar) FROM expiry.lateness)
         FROM expiry.status", &[]).unwrap();
    assert!(row.get::<_, bool>(0) && row.get::<_, bool>(1));
    assert_eq!((row.get::<_, &str>(2), row.get::<_, i64>(3)), ("0", 2));
    assert_eq!(row.get::<_, &str>(4), "#".repeat(40));
}
