//! What was wrong and is put right, was dead and is back: work goes on, and nobody has to ask for it.

use std::time::Duration;

use pg_expiry_tests::{Shop, wait_for_value, wait_until, worker_pids};

const SECOND: Duration = Duration::from_secs(1);

const GOOD: &str = "UPDATE stock SET qty = qty + 1 WHERE sku = 1;
                    UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id";

/// R01: a pass that failed is followed by the next one all the same.
#[test]
fn pass_that_failed_is_not_the_last() {
    let bad = [
        ("every call fails", "SELECT 1/0"),
        ("the worker is ended", "PERFORM pg_terminate_backend(pg_backend_pid())"),
        ("the call is cancelled", "PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(9)"),
        ("the row is left as it is", "NULL"),
    ];
    for ((what, body), rows) in bad.iter().flat_map(|bad| [(bad, 3), (bad, 40)]) {
        let mut shop = Shop::without_policy();
        shop.replace_cancel_order(&format!(
            "PERFORM nextval('calls'); {}",
            body.replace("SELECT 1/0", "PERFORM 1/0")
        ));
        shop.client.batch_execute("CREATE SEQUENCE calls").unwrap();
        shop.create_policy(", retry_delay => '100 ms', max_attempts => 1000");
        shop.fill(1..=rows, "now()");
        wait_until(format_args!("the first calls when {what}"), 20 * SECOND, || {
            shop.value::<bool>("SELECT is_called AND last_value >= 2 FROM calls")
        });
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'cancelled'"), 0);
        shop.replace_cancel_order(GOOD);
        shop.fill(rows + 1..=rows + 1, "now()");
        shop.wait_for_cancelled(rows + 1);
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 0_i64);
        shop.assert_invariant();
    }
}

/// R01: the same for what the whole policy needs.
#[test]
fn policy_that_was_broken_goes_on_when_it_is_mended() {
    let owner_loses =
        "CREATE ROLE $role; ALTER TABLE orders OWNER TO $role; GRANT UPDATE, SELECT ON stock TO $role;
                       REVOKE EXECUTE ON FUNCTION cancel_order FROM PUBLIC";
    let cases = [
        ("ALTER FUNCTION cancel_order RENAME TO gone", "ALTER FUNCTION gone RENAME TO cancel_order"),
        ("ALTER TABLE stock RENAME TO gone", "ALTER TABLE gone RENAME TO stock"),
        (owner_loses, "GRANT EXECUTE ON FUNCTION cancel_order TO $role"),
        ("DROP INDEX orders_pay_by_expiry_idx", "SELECT"),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'orders_pay_by_expiry_idx'::regclass",
            "SELECT",
        ),
    ];
    for (breaks, mends) in cases {
        let mut shop = Shop::new();
        shop.wait_for_index();
        let role = format!("{}_role", shop.db.name);
        shop.client.batch_execute(&breaks.replace("$role", &role)).unwrap();
        shop.fill(1..=3, "now()");
        shop.client.batch_execute(&mends.replace("$role", &role)).unwrap();
        shop.wait_for_cancelled(3);
        shop.assert_invariant();
    }
}

/// R19 (b): the server's time limits are for its users; a cancel function has its own.
#[test]
fn time_limits_of_the_server_do_not_end_the_worker() {
    let mut shop = Shop::without_policy();
    let limits = "SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout',
        'idle_in_transaction_session_timeout', 'idle_session_timeout') ORDER BY name";
    let limits: Vec<String> = shop.client.query(limits, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(limits.len() >= 3, "{limits:?}");
    for limit in &limits {
        shop.set_for_database(limit, "300ms");
    }
    shop.replace_cancel_order(&format!("IF order_id = 1 THEN PERFORM pg_sleep(1); END IF; {GOOD}"));
    shop.restart_workers();
    shop.create_policy("");
    let pid = shop.wait_for_worker();
    shop.fill(1..=5, "now()");
    wait_until("the others", 10 * SECOND, || {
        shop.value::<i64>("SELECT count(*) FROM orders WHERE id > 1 AND status = 'cancelled'") == 4
    });
    wait_until("order 1 to be cancelled, or to fail", 10 * SECOND, || {
        shop.value::<bool>(
            "SELECT status = 'cancelled' OR EXISTS (SELECT FROM expiry.failure) FROM orders WHERE id = 1",
        )
    });
    assert_eq!(worker_pids(&mut shop.client), [pid]);
    shop.assert_invariant();
}
