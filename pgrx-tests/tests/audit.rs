//! What the server's log and pg_stat_activity tell.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, launcher_pid, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

fn shop_on(cluster: &Cluster) -> Shop {
    let shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop
}

fn lines(cluster: &Cluster, part: &str) -> Vec<String> {
    cluster.log().lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
}

/// A line for each row that was cancelled, and for none that was not: not for one whose batch was rolled
/// back, by an error or at the commit.
#[test]
fn each_cancellation_is_logged_once() {
    const ORDERS: i64 = 60;
    let cluster = Cluster::builder().setting("pg_expiry.log_cancellations", "on").start();
    let mut shop = shop_on(&cluster);
    shop.client
        .batch_execute(
            "CREATE TABLE audit (k bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO audit VALUES (14);
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'at the commit'; END $$;
             CREATE CONSTRAINT TRIGGER t AFTER INSERT ON audit DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW WHEN (new.k = 21) EXECUTE FUNCTION refuse()",
        )
        .unwrap();
    shop.replace_cancel_order(
        "IF order_id = 7 THEN RAISE 'never'; END IF;
         INSERT INTO audit VALUES (order_id);
         UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id",
    );
    shop.create_policy(", retry_delay => '1 h'");
    shop.client.batch_execute("INSERT INTO orders (id, pay_by) VALUES (0, '-infinity')").unwrap();
    shop.fill(1..=ORDERS, "now() - interval '1 min' + id * interval '1 ms'");
    shop.wait_for_cancelled(ORDERS + 1 - 3);
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 3_i64);
    wait_for_value(&mut shop.client, "SELECT cancelled FROM expiry.status", ORDERS + 1 - 3);
    let logged = lines(&cluster, "has cancelled row");
    for id in 0..=ORDERS {
        let row = format!("policy \"orders\" has cancelled row {{\"id\": \"{id}\"}}, deadline ");
        let of_it: Vec<&String> = logged.iter().filter(|line| line.contains(&row)).collect();
        assert_eq!(of_it.len(), usize::from(![7, 14, 21].contains(&id)), "{id}: {of_it:?}");
        match id {
            0 => assert!(of_it[0].ends_with("deadline -infinity"), "{of_it:?}"),
            _ => assert!(
                of_it.iter().all(|line| line.contains("Z, ") && line.ends_with(" ms late")),
                "{of_it:?}"
            ),
        }
    }
    shop.assert_invariant();

    // Off again, from the next batch on.
    cluster.set("pg_expiry.log_cancellations", "off");
    wait_until("the worker to know", PATIENCE, || {
        let before = lines(&cluster, "has cancelled row").len();
        let next = shop.value::<i64>("SELECT max(id) FROM orders") + 1;
        shop.due(next, SECOND);
        wait_until("the order", PATIENCE, || shop.status(next) == "cancelled");
        wait_for_value(
            &mut shop.client,
            "SELECT cancelled = (SELECT count(*) FROM orders WHERE status = 'cancelled') FROM expiry.status",
            true,
        );
        lines(&cluster, "has cancelled row").len() == before
    });
}

/// Many rows fail and others succeed: a few lines, each with what to do, and how many there were.
#[test]
fn failing_rows_do_not_fill_the_log() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    shop.replace_cancel_order(
        "IF order_id % 2 = 1 THEN RAISE 'odd'; END IF; UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.create_policy(", max_attempts => 1");
    shop.fill(1..=200, "now() - interval '1 min' + id * interval '1 ms'");
    wait_for_value(&mut shop.client, "SELECT quarantined FROM expiry.status", 100_i64);
    let said = lines(&cluster, "WARNING:");
    let of_rows = said.iter().filter(|line| line.contains("attempt 1 of 1 for row")).count();
    // Twenty a minute; the machine may be slow.
    assert!((20..=60).contains(&of_rows), "{of_rows} of {said:?}");
    assert!(lines(&cluster, "HINT:").len() >= said.len());
}

/// Every process says what it is, what it does and what it waits for.
#[test]
fn processes_are_seen_as_what_they_are() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    shop.create_policy("");
    shop.wait_for_index();
    let pid = shop.wait_for_worker();
    let launcher = launcher_pid(&mut shop.client).unwrap();
    let version: i32 = shop.value("SELECT current_setting('server_version_num')::int");
    let wait_event = if version >= 170_000 { "PgExpiryMain" } else { "Extension" };
    for (pid, name) in [(pid, "pg_expiry worker"), (launcher, "pg_expiry launcher")] {
        let seen = format!(
            "SELECT backend_type || '|' || application_name || '|' || wait_event_type || '|' || wait_event
             FROM pg_stat_activity WHERE pid = {pid} AND wait_event IS NOT NULL"
        );
        wait_for_value(&mut shop.client, &seen, format!("{name}|{name}|Extension|{wait_event}"));
    }
    shop.replace_cancel_order("PERFORM pg_sleep(600)");
    shop.due(1, SECOND);
    let busy = format!(
        "SELECT state || ': ' || query FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
    );
    wait_for_value(&mut shop.client, &busy, "active: cancelling rows of policy \"orders\"".to_owned());
}
