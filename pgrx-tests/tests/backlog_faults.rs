//! Backlogs in which something is wrong: a few bad rows, a broken function, a worker that is killed all
//! the time. Everything that can be cancelled is, once and soon.

use std::env;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Shop, Signal, signal, wait_for_value, wait_until, worker_pids};

const PATIENCE: Duration = Duration::from_secs(30);
const CANCELLED: &str = "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'";
const FAILURES: &str = "SELECT count(*) FROM expiry.failure";

/// What `cancel_order` does when all is well.
const GOOD: &str = "UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
    UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id";

/// A shop with a backlog that nobody works on until [`resume`].
fn shop_with_backlog(rows: i64) -> Shop {
    let mut shop = Shop::without_policy();
    shop.fill(1..=rows, &format!("now() - interval '1 s' * (1 + {rows} - id)"));
    shop.create_policy(", paused => true");
    shop
}

fn resume(shop: &mut Shop) {
    shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();
}

#[track_caller]
fn wait_until_cancelled(shop: &mut Shop, rows: i64) {
    wait_until(format_args!("{rows} orders to be cancelled"), PATIENCE, || {
        match shop.value::<i64>(CANCELLED) {
            found if found >= rows => Ok(()),
            found => Err(found),
        }
    });
    assert_eq!(shop.value::<i64>(CANCELLED), rows);
}

/// Seconds from the first event to the last: without the time that it takes a worker to start.
fn drain_time(client: &mut Client) -> f64 {
    let sql = "SELECT extract(epoch FROM max(occurred_at) - min(occurred_at))::float8
               FROM expiry.event WHERE kind = 'cancelled'";
    client.query_one(sql, &[]).unwrap().get(0)
}

#[test]
fn ten_bad_rows_of_a_thousand_harm_only_themselves() {
    let mut shop = shop_with_backlog(1000);
    shop.replace_cancel_order(&format!(
        "IF order_id % 100 = 50 THEN
             {GOOD};
             CASE order_id / 100 % 3
                 WHEN 0 THEN PERFORM 1 / (order_id - order_id);
                 WHEN 1 THEN INSERT INTO orders (id, sku) VALUES (-1, 77);
                 ELSE RAISE 'no' USING ERRCODE = 'SH0P1', HINT = 'Ask the shop.';
             END CASE;
         END IF;
         {GOOD}"
    ));
    resume(&mut shop);
    wait_until_cancelled(&mut shop, 990);
    wait_for_value(&mut shop.client, FAILURES, 10_i64);
    let took = drain_time(&mut shop.client);
    println!("990 of 1,000 overdue rows were cancelled in {took:.3} s");
    assert!(took < 5.0, "{took} s");
    let wrong = "SELECT count(*) FROM expiry.failure
        WHERE sqlstate <> (ARRAY['22012', '23503', 'SH0P1'])[(key->>'id')::bigint / 100 % 3 + 1]
           OR (key->>'id')::bigint % 100 <> 50 OR attempts < 1
           OR (sqlstate = 'SH0P1' AND (message, hint) IS DISTINCT FROM ('no', 'Ask the shop.'))";
    assert_eq!(shop.value::<i64>(wrong), 0);
    shop.assert_invariant();
}

/// More bad rows than it takes to think that the function is broken, and all of them older.
#[test]
fn bad_rows_do_not_hold_up_younger_ones_however_many() {
    let mut shop = shop_with_backlog(600);
    shop.replace_cancel_order(&format!(
        "IF order_id <= 100 THEN RAISE 'no' USING ERRCODE = 'SH0P1'; END IF; {GOOD}"
    ));
    resume(&mut shop);
    wait_until_cancelled(&mut shop, 500);
    let took = drain_time(&mut shop.client);
    println!("500 good rows behind 100 bad ones were cancelled in {took:.3} s");
    assert!(took < 10.0, "{took} s");
    wait_for_value(&mut shop.client, FAILURES, 100_i64);
    shop.assert_invariant();
}

/// Whatever goes wrong with every call, `state` and `reason` say so, and nobody's attempts are used up.
fn broken_function(body: &str, sqlstate: &str) {
    let mut shop = shop_with_backlog(1000);
    shop.replace_cancel_order(body);
    resume(&mut shop);
    let tripped = "SELECT state = 'tripped' AND reason LIKE '%' || $1 || '%' FROM expiry.progress";
    let mut most_failures = 0;
    wait_until("the policy to trip", PATIENCE, || {
        most_failures = most_failures.max(shop.value::<i64>(FAILURES));
        let row = shop.client.query_opt(tripped, &[&sqlstate]).unwrap();
        row.is_some_and(|row| row.get(0))
    });
    let failed = "SELECT failed FROM expiry.progress";
    let before: i64 = shop.value(failed);
    wait_until("another attempt", PATIENCE, || {
        most_failures = most_failures.max(shop.value::<i64>(FAILURES));
        shop.value::<i64>(failed) > before
    });
    assert!(most_failures < 32, "{most_failures} failures");
    assert_eq!(shop.value::<i64>(CANCELLED), 0);

    let fixed_at = Instant::now();
    shop.replace_cancel_order(GOOD);
    wait_until_cancelled(&mut shop, 1000);
    println!("all cancelled {:?} after the function was replaced", fixed_at.elapsed());
    wait_for_value(&mut shop.client, FAILURES, 0_i64);
    wait_for_value(&mut shop.client, "SELECT state FROM expiry.progress", "active".to_owned());
    shop.assert_invariant();
}

#[test]
fn function_that_always_raises_trips_the_policy() {
    broken_function("RAISE 'broken' USING ERRCODE = 'SH0P1'", "SH0P1");
}

#[test]
fn function_that_never_cancels_trips_the_policy() {
    broken_function("PERFORM 1", "2F000");
}

/// Calls the whole batch at once, which is how one would cancel so many.
const CANCEL_MANY: &str = "
    CREATE FUNCTION cancel_orders(ids bigint[]) RETURNS void LANGUAGE sql AS $$
        UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = ANY (ids);
        UPDATE stock SET qty = qty + cardinality(ids) WHERE sku = 1;
    $$";

#[test]
fn worker_that_is_ended_all_the_time_cancels_each_row_once() {
    const ROWS: i64 = 200_000;
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.fill(1..=ROWS, "now() - interval '1 s' * id");
    shop.create_policy(", paused => true");
    if env::var_os("PG_EXPIRY_BACKLOG_BY_ROW").is_none() {
        shop.client.batch_execute(CANCEL_MANY).unwrap();
        let alter = "SELECT expiry.alter_policy('orders', cancel_function => 'cancel_orders(bigint[])')";
        shop.client.batch_execute(alter).unwrap();
    }
    resume(&mut shop);
    let (mut terminated, mut killed) = (0, false);
    let mut ended = 0;
    let begun = Instant::now();
    while shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") > 0 {
        // The one that was told to end may still be seen.
        let pid = wait_until("a new worker", PATIENCE, || {
            worker_pids(&mut shop.client).into_iter().find(|pid| *pid != ended)
        });
        ended = pid;
        shop.client.batch_execute("SELECT pg_sleep(0.7)").unwrap();
        if !killed && shop.value::<i64>(CANCELLED) > ROWS / 2 {
            killed = true;
            signal(pid, Signal::KILL);
            wait_until("the sessions to be ended", PATIENCE, || shop.client.batch_execute("SELECT").is_err());
            shop.client = wait_until("the server", PATIENCE, || {
                shop.db.endpoint.try_connect(&shop.db.name, "postgres")
            });
        } else {
            terminated += 1;
            shop.client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
        }
    }
    println!("{ROWS} rows in {:?}, {terminated} terminations", begun.elapsed());
    assert!(killed && terminated > 2, "killed: {killed}, terminated {terminated} times");
    let disorder = "SELECT count(*) FROM (SELECT occurred_at < lag(occurred_at) OVER (ORDER BY id) AS is_back
        FROM expiry.event) e WHERE is_back";
    assert_eq!(shop.value::<i64>(disorder), 0);
    assert_eq!(shop.value::<i64>("SELECT count(DISTINCT key) FROM expiry.event"), ROWS);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), ROWS);
    assert_eq!(shop.value::<i64>(FAILURES), 0);
    assert_eq!(shop.value::<i64>("SELECT qty - 1000000::bigint FROM stock"), ROWS);
}
