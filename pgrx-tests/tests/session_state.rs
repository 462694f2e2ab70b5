//! What a call of the cancel function leaves behind in its session, no later call meets.

use pg_expiry_tests::{Shop, wait_for_value};

/// Notes what there is, and then leaves as much as it can.
const UNTIDY: &str = "
CREATE TABLE found (
    order_id bigint, work_mem text, zone text, path text, iso text, cursors bigint, prepared bigint,
    temporary bigint, advisory bigint, role text, deadlock text
);
CREATE PROCEDURE leave_things(first bigint) LANGUAGE plpgsql AS $$
DECLARE
    left_open refcursor := 'left_open';
BEGIN
    INSERT INTO public.found SELECT
        first, current_setting('work_mem'), current_setting('TimeZone'), current_setting('search_path'),
        current_setting('transaction_isolation'),
        (SELECT count(*) FROM pg_cursors WHERE name = 'left_open'),
        (SELECT count(*) FROM pg_prepared_statements),
        (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid)),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objid = 1),
        current_user, current_setting('statement_timeout');
    PERFORM set_config('work_mem', '77MB', true), set_config('TimeZone', 'Asia/Tokyo', false),
            set_config('search_path', 'nowhere', false), set_config('statement_timeout', '1ms', false),
            set_config('pg_expiry.untidy', 'yes', false);
    OPEN left_open FOR SELECT 1;
    EXECUTE 'PREPARE left_over AS SELECT 1';
    EXECUTE 'CREATE TEMPORARY TABLE orders AS SELECT 1 AS id';
    EXECUTE 'CREATE TEMPORARY TABLE stock ON COMMIT DROP AS SELECT 1 AS id';
    PERFORM pg_catalog.pg_advisory_lock(1);
END $$";

const FORMS: [&str; 2] = [
    "CREATE FUNCTION expire(o_id bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
         UPDATE public.orders SET status = 'cancelled' WHERE id = o_id;
         CALL public.leave_things(o_id); END $$",
    "CREATE FUNCTION expire(o_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
         UPDATE public.orders SET status = 'cancelled' WHERE id = ANY (o_ids);
         CALL public.leave_things(o_ids[1]); END $$",
];

fn create_policy(shop: &mut Shop, more: &str) {
    let sql = format!(
        "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
             cancel_function => 'expire'{more})"
    );
    shop.client.batch_execute(&sql).unwrap();
}

/// R36.
#[test]
fn call_finds_nothing_of_the_calls_before() {
    for form in FORMS {
        let mut shop = Shop::without_policy();
        shop.client
            .batch_execute(UNTIDY.replace("set_config('pg_expiry.untidy', 'yes', false)", "1").as_str())
            .unwrap();
        shop.client.batch_execute(form).unwrap();
        create_policy(&mut shop, ", batch_size => 3");
        shop.fill(1..=10, "now()");
        wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 10_i64);
        let pid = shop.wait_for_worker();
        // The worker's own statements do not meet it either.
        shop.fill(11..=13, "now() + interval '100 ms'");
        wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 13_i64);
        assert_eq!(shop.wait_for_worker(), pid);
        let distinct = "SELECT count(DISTINCT (work_mem, zone, path, iso, role, deadlock)) FROM found";
        assert_eq!(shop.value::<i64>(distinct), 1, "{form}");
        let met =
            "SELECT count(*) FROM found WHERE work_mem = '77MB' OR zone = 'Asia/Tokyo' OR path = 'nowhere'
                   OR cursors + prepared + temporary + advisory > 0 OR iso <> 'read committed'";
        assert_eq!(shop.value::<i64>(met), 0, "{form}");
        let kept = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND locktype = 'advisory'");
        wait_for_value(&mut shop.client, &kept, 0_i64);
        let temporary = "SELECT count(*) FROM pg_class WHERE relpersistence = 't'";
        wait_for_value(&mut shop.client, temporary, 0_i64);
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 13);
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    }
}

/// R36: a call that wants to commit gets an error that says so, once; nothing of it stays.
#[test]
fn call_that_wants_to_commit_is_a_failure() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE PROCEDURE commit_early(o_id bigint) LANGUAGE plpgsql AS $$ BEGIN
                 UPDATE orders SET cancelled_at = now() WHERE id = o_id; COMMIT; END $$;
             CREATE PROCEDURE roll_back(o_id bigint) LANGUAGE plpgsql AS $$ BEGIN
                 UPDATE orders SET cancelled_at = now() WHERE id = o_id; ROLLBACK; END $$;
             CREATE FUNCTION expire(o_id bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                 IF o_id = 2 THEN CALL commit_early(o_id); ELSIF o_id = 3 THEN CALL roll_back(o_id); END IF;
                 PERFORM cancel_order(o_id);
             END $$",
        )
        .unwrap();
    create_policy(&mut shop, ", retry_delay => '1 h'");
    shop.fill(1..=4, "now()");
    shop.wait_for_cancelled(2);
    let failures = "SELECT count(*) FROM expiry.failure WHERE attempts = 1 AND sqlstate = '2D000'";
    wait_for_value(&mut shop.client, failures, 2_i64);
    assert_eq!(
        shop.value::<i64>("SELECT count(*) FROM orders WHERE id IN (2, 3) AND cancelled_at IS NULL"),
        2
    );
    shop.assert_invariant();
}
