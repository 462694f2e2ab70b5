//! Rows whose cancel function fails: each harms itself only, is tried again by and by, and is seen.

use std::time::Duration;

use pg_expiry_tests::{Shop, cpu_time, wait_for_value, wait_until, worker_pids};

const SECOND: Duration = Duration::from_secs(1);

/// The three forms of a cancel function; `$row` does something to order `o_id`, which may fail.
const FORMS: [&str; 3] = [
    "CREATE FUNCTION expire(o_id bigint) RETURNS void LANGUAGE plpgsql AS $f$ BEGIN
         PERFORM cancel_order(o_id); $row END $f$",
    "CREATE FUNCTION expire(o orders) RETURNS void LANGUAGE plpgsql AS $f$ DECLARE o_id bigint := o.id; BEGIN
         PERFORM cancel_order(o_id); $row END $f$",
    "CREATE FUNCTION expire(o_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $f$ DECLARE o_id bigint; BEGIN
         FOREACH o_id IN ARRAY o_ids LOOP PERFORM cancel_order(o_id); $row END LOOP; END $f$",
];

/// A shop whose cancel function cancels the order, and does `$row` for each.
fn shop_with(form: &str, row: &str, more: &str) -> Shop {
    let mut shop = Shop::without_policy();
    shop.client.batch_execute(&form.replace("$row", row)).unwrap();
    let sql = format!(
        "CREATE SEQUENCE calls;
         CREATE TABLE item (order_id bigint, state text);
         CREATE TABLE parcel (k int PRIMARY KEY);
         CREATE TABLE tracked (k int REFERENCES parcel);
         INSERT INTO parcel VALUES (1); INSERT INTO tracked VALUES (1);
         CREATE TABLE audit (k bigint UNIQUE DEFERRABLE INITIALLY DEFERRED);
         SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
             cancel_function => 'expire'{more})"
    );
    shop.client.batch_execute(&sql).unwrap();
    shop
}

fn failures(shop: &mut Shop) -> Vec<(String, i32, String)> {
    let sql = "SELECT key->>'id', attempts, sqlstate FROM expiry.failure ORDER BY (key->>'id')::int";
    shop.client.query(sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// R15: one bad row stops nobody and leaves no half of a cancellation.
#[test]
fn failing_row_harms_itself_only() {
    let errors = [
        (
            "UPDATE item SET state = 'gone' WHERE order_id = o_id; IF o_id = 37 THEN DELETE FROM parcel; END IF;",
            "23503",
        ),
        (
            "UPDATE item SET state = 'gone' WHERE order_id = o_id; IF o_id = 37 THEN PERFORM 1 / 0; END IF;",
            "22012",
        ),
        (
            "UPDATE item SET state = 'gone' WHERE order_id = o_id; IF o_id = 37 THEN INSERT INTO audit VALUES (1), (1); END IF;",
            "23505",
        ),
    ];
    for (form, (row, sqlstate)) in FORMS.iter().flat_map(|form| errors.map(|error| (form, error))) {
        let mut shop = shop_with(form, row, ", retry_delay => '1 h'");
        shop.client
            .batch_execute("INSERT INTO item SELECT id, 'reserved' FROM generate_series(1, 100) id")
            .unwrap();
        shop.fill(1..=100, "now() - interval '1 min' + id * interval '1 ms'");
        shop.wait_for_cancelled(99);
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 1_i64);
        assert_eq!(failures(&mut shop), [("37".to_owned(), 1, sqlstate.to_owned())], "{form}");
        assert_eq!(shop.status(37), "pending");
        let items = "SELECT count(*) FROM item WHERE state = 'reserved'";
        assert_eq!(
            (shop.value::<i64>(items), shop.value::<String>("SELECT state FROM item WHERE order_id = 37")),
            (1, "reserved".to_owned())
        );
        let next = "SELECT next_attempt_at > now() + interval '30 min' AND message <> '' FROM expiry.failure";
        assert!(shop.value::<bool>(next));
        shop.assert_invariant();
    }
}

/// R23: poison rows keep the head of the queue, and the young are reached all the same: a few of them,
/// more than a batch, more than it takes for the function to be suspected.
#[test]
fn old_failures_do_not_starve_the_young() {
    for poison in [8, 12, 40] {
        let mut shop = shop_with(
            FORMS[0],
            &format!("IF o_id <= {poison} THEN RAISE 'poison'; END IF;"),
            ", batch_size => 8, retry_delay => '1 h'",
        );
        shop.fill(1..=poison, "now() - interval '1 h'");
        shop.fill(1001..=1500, "now() - interval '1 s'");
        shop.wait_for_cancelled(500);
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", poison);
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure WHERE attempts <> 1"), 0);
        shop.assert_invariant();
    }
}

/// R23: nor when they are alone, and the policy has stopped believing in its function.
#[test]
fn bad_rows_do_not_make_a_good_order_late() {
    let mut shop = shop_with(FORMS[0], "IF o_id <= 40 THEN RAISE 'poison'; END IF;", "");
    shop.fill(1..=40, "now()");
    wait_for_value(&mut shop.client, "SELECT state FROM expiry.status", "tripped".to_owned());
    for id in 101..=103 {
        // Time for its pauses to grow.
        shop.fill(id..=id, "now() + interval '3 s'");
        let cancelled = format!("SELECT status FROM orders WHERE id = {id}");
        wait_for_value(&mut shop.client, &cancelled, "cancelled".to_owned());
    }
    let late = "SELECT extract(epoch FROM max(lateness))::float8 FROM expiry.event WHERE kind = 'cancelled'";
    let late = shop.value::<f64>(late);
    assert!(late < 4.0, "{late} s late");
}

/// R24, R70: the record of a failure does not roll back with it, whatever failed and whenever; and the
/// worker is the same afterwards.
#[test]
fn failure_is_recorded_whatever_failed() {
    let errors = [
        ("IF o_id > 0 THEN RAISE 'no' USING DETAIL = 'd', HINT = 'h'; END IF;", "P0001"),
        ("IF o_id > 0 THEN PERFORM 1 / 0; END IF;", "22012"),
        // Only the commit would notice it.
        ("IF o_id > 0 THEN INSERT INTO audit VALUES (1), (1); END IF;", "23505"),
        ("IF o_id > 0 THEN EXECUTE 'COMMIT'; END IF;", "0A000"),
        ("IF o_id > 0 THEN UPDATE orders SET status = 'pending' WHERE id = o_id; END IF;", "2F000"),
        ("IF o_id > 0 THEN PERFORM pg_sleep(60); END IF;", "57014"),
    ];
    for (row, sqlstate) in errors {
        let mut shop = Shop::with_settings(&[("pg_expiry.cancel_timeout", "50ms")]);
        shop.client
            .batch_execute("CREATE TABLE audit (k bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
            .unwrap();
        shop.client.batch_execute(&FORMS[0].replace("$row", row)).unwrap();
        shop.client
            .batch_execute(
                "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                     cancel_function => 'expire', retry_delay => '1 h')",
            )
            .unwrap();
        let pid = shop.wait_for_worker();
        shop.fill(1..=3, "now()");
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 3_i64);
        for (id, attempts, found) in failures(&mut shop) {
            assert_eq!((attempts, found.as_str()), (1, sqlstate), "order {id}: {row}");
        }
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure WHERE message = ''"), 0);
        shop.fill(-1..=-1, "now()");
        shop.wait_for_cancelled(1);
        assert_eq!(worker_pids(&mut shop.client), [pid], "{row}");
        shop.assert_invariant();
    }
}

/// R24 (d): what is nobody's fault uses up no attempt, however often it comes.
#[test]
fn transient_error_uses_up_no_attempt() {
    for sqlstate in ["40P01", "40001", "55P03", "53100"] {
        let row = format!(
            "IF o_id > 0 AND nextval('calls') < 9 THEN RAISE 'not now' USING ERRCODE = '{sqlstate}'; END IF;"
        );
        let mut shop = shop_with(FORMS[0], &row, ", max_attempts => 2");
        let pid = shop.wait_for_worker();
        shop.fill(1..=3, "now()");
        shop.fill(-1..=-1, "now()");
        shop.wait_for_cancelled(4);
        assert_eq!(worker_pids(&mut shop.client), [pid], "{sqlstate}");
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event WHERE kind <> 'cancelled'"), 0);
        assert_eq!(failures(&mut shop), [], "{sqlstate}");
        shop.assert_invariant();
    }
}

/// R70: two of ten rows cannot both go, and only the commit would notice.
#[test]
fn error_of_the_commit_is_pinned_on_its_row() {
    for form in FORMS {
        let row =
            "PERFORM nextval('calls'); INSERT INTO audit VALUES (CASE o_id WHEN 7 THEN 3 ELSE o_id END);";
        let mut shop = shop_with(form, row, ", retry_delay => '1 h'");
        shop.fill(1..=10, "now() - interval '1 min' + id * interval '1 ms'");
        shop.wait_for_cancelled(9);
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 1_i64);
        let failures = failures(&mut shop);
        assert!(["3", "7"].contains(&failures[0].0.as_str()), "{failures:?}");
        assert_eq!((failures[0].1, failures[0].2.as_str()), (1, "23505"));
        let calls = shop.value::<i64>("SELECT last_value FROM calls");
        assert!(calls <= 40, "{calls} calls for 10 rows");
        shop.assert_invariant();
    }
}

/// R08: no hot loop; after max_attempts the row is parked, seen, and let go again by hand.
#[test]
fn row_that_always_fails_is_parked() {
    let row = "IF o_id = 1 AND nextval('calls') < 100 THEN RAISE 'never'; END IF;";
    let mut shop = shop_with(FORMS[0], row, ", retry_delay => '100 ms', max_attempts => 5");
    let mut listener = shop.listen();
    let pid = shop.wait_for_worker();
    let before = cpu_time(pid);
    shop.fill(1..=2, "now()");
    wait_for_value(
        &mut shop.client,
        "SELECT count(*) FROM expiry.failure WHERE next_attempt_at IS NULL",
        1_i64,
    );
    assert_eq!(failures(&mut shop), [("1".to_owned(), 5, "P0001".to_owned())]);
    // The waits were 0.1, 0.2, 0.4 and 0.8 s, less an eighth.
    let took =
        "SELECT extract(epoch FROM failed_at - pay_by)::float8 FROM expiry.failure, orders WHERE id = 1";
    assert!(shop.value::<f64>(took) > 1.3);
    let kinds: Vec<String> =
        listener.take(2, 10 * SECOND).iter().map(|heard| heard.json["kind"].to_string()).collect();
    assert_eq!(kinds, ["\"cancelled\"", "\"quarantined\""]);
    // That it is left alone from now on is the claim: for two seconds.
    assert!(listener.try_next(2 * SECOND).is_none());
    assert_eq!(shop.value::<i64>("SELECT last_value FROM calls"), 5);
    assert_eq!(shop.value::<i64>("SELECT quarantined FROM expiry.status"), 1);
    let used = cpu_time(pid) - before;
    assert!(used < SECOND / 2, "{used:?} of CPU");
    shop.client.batch_execute("SELECT setval('calls', 100); SELECT expiry.retry('orders')").unwrap();
    shop.wait_for_cancelled(2);
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 0_i64);
    shop.assert_invariant();
}

/// R06: the function says "not now" twice: no failure, no event, and it is asked again.
#[test]
fn declined_order_is_asked_again() {
    let answers = [
        "CREATE FUNCTION expire(o_id bigint) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN
             IF nextval('calls') < 3 THEN RETURN $no; END IF;
             PERFORM cancel_order(o_id); RETURN true; END $f$",
        "CREATE FUNCTION expire(o_ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $f$ BEGIN
             IF nextval('calls') < 3 THEN RETURN $none; END IF;
             PERFORM cancel_order(o_ids[1]); RETURN o_ids; END $f$",
    ];
    for (answer, no, none) in [(0, "false", ""), (0, "NULL", ""), (1, "", "'{}'"), (1, "", "NULL")] {
        let answer = answers[answer].replace("$none", none).replace("$no", no);
        let mut shop = shop_with(&answer, "", ", retry_delay => '1 s'");
        shop.fill(1..=1, "now()");
        wait_for_value(&mut shop.client, "SELECT declined FROM expiry.status", 1_i64);
        assert_eq!(shop.status(1), "pending", "{answer}");
        shop.assert_untouched(1);
        assert_eq!(shop.value::<i32>("SELECT qty - 1000000 FROM stock"), 0);
        shop.wait_for_cancelled(1);
        assert_eq!(shop.value::<i64>("SELECT last_value FROM calls"), 3, "{answer}");
        let sql = "SELECT declined = 2 AND failed = 0 AND cancelled = 1 FROM expiry.status";
        wait_until("the counters", 10 * SECOND, || shop.value::<bool>(sql));
        shop.assert_invariant();
    }
}

/// A row that leaves the due set some other way loses the record of its failures, whether it waits for its
/// next attempt or has none left; the one that stays due keeps it.
#[test]
fn row_that_is_no_longer_due_loses_its_record() {
    for max_attempts in [1, 20] {
        let more = format!(", retry_delay => '1 h', max_attempts => {max_attempts}");
        let mut shop = shop_with(FORMS[0], "IF o_id <= 5 THEN RAISE 'never'; END IF;", &more);
        shop.fill(1..=6, "now() - interval '1 min'");
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 5_i64);
        shop.wait_for_cancelled(1);
        let leave = "UPDATE orders SET status = 'paid' WHERE id = 1;
             DELETE FROM orders WHERE id = 2;
             UPDATE orders SET pay_by = now() + interval '1 day' WHERE id = 3;
             UPDATE orders SET pay_by = NULL WHERE id = 4";
        shop.client.batch_execute(leave).unwrap();
        let left = "SELECT string_agg(key->>'id', ' ' ORDER BY key->>'id') FROM expiry.failure";
        wait_for_value(&mut shop.client, left, "5".to_owned());
        // The first record was of another deadline: it is not taken into account again.
        shop.client.batch_execute("UPDATE orders SET pay_by = now() WHERE id = 3").unwrap();
        wait_for_value(&mut shop.client, left, "3 5".to_owned());
        assert_eq!(
            failures(&mut shop),
            [("3".to_owned(), 1, "P0001".to_owned()), ("5".to_owned(), 1, "P0001".to_owned())]
        );
    }
}

#[test]
fn retry_takes_the_key_as_an_object_or_bare() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    let record = r#"INSERT INTO expiry.failure (policy, key, attempts, sqlstate, message, failed_at)
        SELECT 'orders', key, 8, '22012', 'no', now()
        FROM unnest('{"{\"id\": \"7\"}", "{\"id\": \"8\"}", "{\"a\": \"7\", \"b\": 1}"}'::jsonb[]) AS key"#;
    shop.client.batch_execute(record).unwrap();
    for (key, rows) in [
        ("7", 1),
        (r#""7""#, 1),
        (r#"{"id": 7}"#, 1),
        (r#"{"id": "7"}"#, 1),
        (r#"{"b": 1, "a": "7"}"#, 1),
        ("9", 0),
        ("[7]", 0),
        ("null", 0),
        ("{}", 0),
        (r#"{"a": "7"}"#, 0),
        (r#"{"id": 7, "b": 1}"#, 0),
    ] {
        let retried = shop.value::<i64>(&format!("SELECT expiry.retry('orders', '{key}')"));
        assert_eq!(retried, rows, "{key}");
    }
    assert_eq!(shop.value::<i64>("SELECT expiry.retry('orders')"), 3);
}
