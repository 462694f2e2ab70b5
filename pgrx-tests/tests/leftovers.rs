//! What a call leaves behind when it fails: some things in a session survive a rollback. And what a call may
//! not do in a worker at all.

use pg_expiry_tests::{Shop, wait_for_value};

/// Leaves as much as it can, and fails if it finds any of it.
const UNTIDY: &str = "
CREATE FUNCTION leave_things() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    left_open refcursor := 'left_open';
BEGIN
    IF current_setting('work_mem') = '77MB' THEN RAISE 'met a setting' USING ERRCODE = 'SH0P2'; END IF;
    EXECUTE 'PREPARE left_over AS SELECT 1';
    EXECUTE 'CREATE TEMPORARY TABLE left_over ()';
    EXECUTE 'DECLARE left_over CURSOR WITH HOLD FOR SELECT 1';
    OPEN left_open FOR SELECT 1;
    IF NOT pg_try_advisory_lock(4711) THEN RAISE 'met a lock' USING ERRCODE = 'SH0P2'; END IF;
    SET LOCAL work_mem = '77MB';
    PERFORM set_config('work_mem', '77MB', false);
END $$;
-- The same key in every order: only the first of a transaction may go.
CREATE TABLE till (k int UNIQUE DEFERRABLE INITIALLY DEFERRED);";

fn shop() -> Shop {
    let mut shop = Shop::without_policy();
    shop.client.batch_execute(UNTIDY).unwrap();
    shop
}

const FREE: &str = "SELECT pg_try_advisory_lock(4711) AND pg_advisory_unlock(4711)";

/// Every second call fails after it has left its things.
#[test]
fn call_that_fails_leaves_nothing_either() {
    let mut shop = shop();
    shop.replace_cancel_order(
        "PERFORM leave_things();
         UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id;
         IF order_id % 2 = 0 THEN RAISE 'no' USING ERRCODE = 'SH0P1'; END IF",
    );
    shop.create_policy(", retry_delay => '50 ms', max_attempts => 3");
    shop.fill(1..=20, "now()");
    shop.wait_for_cancelled(10);
    let parked = "SELECT count(*) FROM expiry.failure WHERE next_attempt_at IS NULL AND sqlstate = 'SH0P1'";
    wait_for_value(&mut shop.client, parked, 10_i64);
    wait_for_value(&mut shop.client, FREE, true);
    shop.assert_invariant();
}

/// The same where the whole batch fails, at the check of what was deferred.
#[test]
fn batch_that_fails_leaves_nothing_either() {
    let mut shop = shop();
    shop.replace_cancel_order(
        "PERFORM leave_things();
         UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id;
         INSERT INTO till VALUES (order_id % 5)",
    );
    shop.create_policy(", retry_delay => '50 ms', max_attempts => 3");
    shop.fill(1..=10, "now()");
    shop.wait_for_cancelled(5);
    let parked = "SELECT count(*) FROM expiry.failure WHERE next_attempt_at IS NULL AND sqlstate = '23505'";
    wait_for_value(&mut shop.client, parked, 5_i64);
    wait_for_value(&mut shop.client, FREE, true);
    shop.assert_invariant();
}

/// A worker has no client that could be notified: PostgreSQL refuses, and it is the row's failure.
#[test]
fn call_that_listens_is_a_failure() {
    let mut shop = shop();
    shop.replace_cancel_order(
        "IF order_id = 1 THEN LISTEN nobody; END IF;
         UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id",
    );
    shop.create_policy("");
    shop.fill(1..=3, "now()");
    shop.wait_for_cancelled(2);
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure WHERE sqlstate = '0A000'", 1_i64);
    shop.assert_invariant();
}
