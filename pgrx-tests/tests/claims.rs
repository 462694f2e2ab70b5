//! What a claim takes: due rows that nobody else has locked, whenever they came, and no more than a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{DebugPoint, Signal, db_error};
use pg_expiry_tests::{Shop, cpu_time, signal, wait_for_value, wait_until, worker_pids};

const SECOND: Duration = Duration::from_secs(1);

/// An order of its own that is due now, and is cancelled: so the worker has looked at all that is due.
fn wait_for_a_pass(shop: &mut Shop, canary: i64) {
    shop.fill(canary..=canary, "now()");
    shop.client.batch_execute("SELECT expiry.wake()").unwrap();
    let sql = format!("SELECT status FROM orders WHERE id = {canary}");
    wait_for_value(&mut shop.client, &sql, "cancelled".to_owned());
}

/// What a session may have done to an order before it goes on or gives up.
const HOLDS: [&str; 7] = [
    // R34: the foreign key of a payment locks its order FOR KEY SHARE.
    "INSERT INTO pay (order_id) VALUES ($id)",
    "SELECT FROM orders WHERE id = $id FOR KEY SHARE",
    "SELECT FROM orders WHERE id = $id FOR SHARE",
    "SELECT FROM orders WHERE id = $id FOR UPDATE",
    "SELECT FROM orders WHERE id = $id FOR NO KEY UPDATE",
    "DELETE FROM orders WHERE id = $id",
    // R16: the deadline is moved.
    "UPDATE orders SET pay_by = now() + interval '1 h' WHERE id = $id",
];

/// Each hold by a session of its own. Its order becomes due meanwhile and the worker passes twice; then
/// `end` ends the transaction.
fn hold(end: &str) -> Shop {
    let mut shop = Shop::new();
    shop.client
        .batch_execute("CREATE TABLE pay (order_id bigint REFERENCES orders ON DELETE CASCADE)")
        .unwrap();
    shop.wait_for_index();
    shop.fill(1..=HOLDS.len() as i64, "now() + interval '1 s'");
    let mut sessions: Vec<Client> = HOLDS.iter().map(|_| shop.db.connect()).collect();
    for (id, (session, how)) in (1..).zip(sessions.iter_mut().zip(HOLDS)) {
        session.batch_execute(&format!("BEGIN; {}", how.replace("$id", &i64::to_string(&id)))).unwrap();
    }
    wait_until("the orders to be due", 10 * SECOND, || {
        shop.value::<bool>("SELECT clock_timestamp() > max(pay_by) FROM orders")
    });
    wait_for_a_pass(&mut shop, 100);
    wait_for_a_pass(&mut shop, 101);
    let pending = "SELECT count(*) FROM orders WHERE id < 100 AND status = 'pending'";
    assert_eq!(shop.value::<i64>(pending), HOLDS.len() as i64, "somebody's order was taken from him");
    for (id, session) in (1..).zip(&mut sessions) {
        session.batch_execute(&end.replace("$id", &i64::to_string(&id))).unwrap();
    }
    wait_for_a_pass(&mut shop, 102);
    shop
}

/// R34 (a).
#[test]
fn order_that_is_paid_by_who_holds_it_stays_paid() {
    let mut shop = hold("UPDATE orders SET status = 'paid' WHERE id = $id; COMMIT");
    let paid = "SELECT count(*) FROM orders WHERE id < 100 AND status = 'paid'";
    // One was deleted.
    assert_eq!(shop.value::<i64>(paid), HOLDS.len() as i64 - 1);
    shop.assert_invariant();
}

/// R16 (a): longer time is longer time, also when it was given at the last moment.
#[test]
fn deadline_that_is_moved_by_who_holds_the_order_counts() {
    let mut shop = hold("UPDATE orders SET pay_by = now() + interval '1 h' WHERE id = $id; COMMIT");
    let pending = "SELECT count(*) FROM orders WHERE id < 100 AND status = 'pending'";
    assert_eq!(shop.value::<i64>(pending), HOLDS.len() as i64 - 1);
    shop.assert_invariant();
}

/// R34 (b), R16 (b).
#[test]
fn order_that_was_held_in_vain_is_cancelled() {
    let mut shop = hold("ROLLBACK");
    shop.wait_for_cancelled(HOLDS.len() as i64 + 3);
    shop.assert_invariant();
}

#[test]
fn held_orders_do_not_keep_the_worker_busy() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    shop.fill(1..=100, "now() + interval '200 ms'");
    let mut session = shop.db.connect();
    session.batch_execute("BEGIN; SELECT FROM orders FOR UPDATE").unwrap();
    wait_for_a_pass(&mut shop, 200);
    let before = cpu_time(shop.wait_for_worker());
    // That it does little is the claim: for three seconds.
    assert!(shop.listen().try_next(3 * SECOND).is_none());
    let used = cpu_time(shop.wait_for_worker()) - before;
    assert!(used < SECOND / 2, "{used:?} of CPU in 3 s");
    session.batch_execute("ROLLBACK").unwrap();
    shop.wait_for_cancelled(101);
    shop.assert_invariant();
}

/// R28: a transaction that commits late brings deadlines below all that was swept.
#[test]
fn late_committer_is_not_skipped() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    for (first, restarts) in [(1, false), (10, true)] {
        let mut late = shop.db.connect();
        let insert =
            format!("BEGIN; INSERT INTO orders (id, pay_by) VALUES ({first}, now() + interval '100 ms')");
        late.batch_execute(&insert).unwrap();
        shop.fill(first + 1..=first + 1, "now() + interval '400 ms'");
        wait_for_value(
            &mut shop.client,
            &format!("SELECT status FROM orders WHERE id = {}", first + 1),
            "cancelled".to_owned(),
        );
        if restarts {
            let pid = shop.wait_for_worker();
            signal(pid, Signal::TERM);
            wait_until("another worker", 20 * SECOND, || {
                worker_pids(&mut shop.client).first().is_some_and(|new| *new != pid)
            });
            wait_for_a_pass(&mut shop, first + 2);
        }
        late.batch_execute("COMMIT").unwrap();
        shop.settle();
        assert_eq!(shop.status(first), "cancelled");
    }
    shop.assert_invariant();
}

fn spoil_plans(client: &mut Client, database: &str) {
    for name in
        ["enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_material", "enable_indexscan"]
    {
        client.batch_execute(&format!("ALTER DATABASE {database} SET {name} = off")).unwrap();
    }
}

/// R29: whatever the plan, a transaction takes no more than a batch.
#[test]
fn batch_is_never_larger_than_its_size() {
    let forms = [
        "CREATE FUNCTION expire(order_id bigint) RETURNS void LANGUAGE sql
             AS $$ UPDATE orders SET status = 'cancelled' WHERE id = order_id $$",
        "CREATE FUNCTION expire(o orders) RETURNS void LANGUAGE sql
             AS $$ UPDATE orders SET status = 'cancelled' WHERE id = o.id $$",
        "CREATE FUNCTION expire(order_ids bigint[]) RETURNS void LANGUAGE sql
             AS $$ UPDATE orders SET status = 'cancelled' WHERE id = ANY (order_ids) $$",
    ];
    for (form, spoilt) in forms.iter().flat_map(|form| [(form, false), (form, true)]) {
        let mut shop = Shop::without_policy();
        shop.client
            .batch_execute("ALTER TABLE orders SET (autovacuum_enabled = off); ANALYZE orders")
            .unwrap();
        shop.client.batch_execute(form).unwrap();
        if spoilt {
            let database = shop.db.name.clone();
            spoil_plans(&mut shop.client, &database);
        }
        shop.fill(1..=200, "now() - interval '1 s' * id");
        shop.client
            .batch_execute(
                "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                     cancel_function => 'expire', batch_size => 5)",
            )
            .unwrap();
        shop.wait_for_cancelled(200);
        let most = "SELECT max(n) FROM (SELECT count(*) AS n FROM orders GROUP BY xmin::text) x";
        assert_eq!(shop.value::<i64>(most), 5, "{form}");
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'"), 200);
        // Oldest first.
        let disorder = "SELECT count(*) FROM (SELECT deadline < lag(deadline) OVER (ORDER BY id) AS x FROM expiry.event) e WHERE x";
        assert_eq!(shop.value::<i64>(disorder), 0, "{form}");
    }
}

/// A checkout that needs what a batch has locked waits for its end, so batches are short while one waits.
#[test]
fn batches_are_short_while_somebody_waits_for_them() {
    const ORDERS: i64 = 6000;
    // Those who were held up together come again together, and meanwhile nobody waits.
    const THINKS: Duration = Duration::from_millis(100);
    // 0.2 ms an order: a thousand fit the target time, and 250 a twentieth of it.
    const CANCEL: &str = "CREATE FUNCTION cancel_orders(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE stock SET qty = qty + cardinality(ids) WHERE sku = 1;
            UPDATE orders SET status = 'cancelled' WHERE id = ANY (ids);
            PERFORM pg_sleep(0.0002 * cardinality(ids));
        END $$";
    // Of the batch that an order was in.
    const USUAL: &str = "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY n)
        FROM (SELECT count(*) OVER (PARTITION BY xmin::text) AS n FROM orders) o";
    let drain = |customers: usize| {
        let mut shop = Shop::without_policy();
        shop.set_for_database("pg_expiry.target_batch_time", "1s");
        shop.client.batch_execute(CANCEL).unwrap();
        shop.fill(1..=ORDERS, "now() - interval '1 min' + id * interval '1 us'");
        let is_open = Arc::new(AtomicBool::new(true));
        let threads: Vec<_> = (0..customers)
            .map(|_| {
                let (mut session, is_open) = (shop.db.connect(), is_open.clone());
                thread::spawn(move || {
                    while is_open.load(Ordering::Relaxed) {
                        session.batch_execute("UPDATE stock SET qty = qty WHERE sku = 1").unwrap();
                        thread::sleep(THINKS);
                    }
                })
            })
            .collect();
        shop.client
            .batch_execute(
                "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                     cancel_function => 'cancel_orders', batch_size => 1000)",
            )
            .unwrap();
        shop.wait_for_cancelled(ORDERS);
        is_open.store(false, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        shop.value::<i64>(USUAL)
    };
    let (alone, beside_customers) = (drain(0), drain(4));
    assert_eq!(alone, 1000);
    assert!(beside_customers <= 250, "{beside_customers} orders in a batch that customers wait for");
}

/// The work for a row does not grow with the backlog: neither the claim nor the check after the calls
/// walks over all that is due.
#[test]
fn backlog_is_read_once_and_not_once_a_batch() {
    const ROWS: i64 = 10_000;
    let mut shop = Shop::without_policy();
    // Without statistics. The deadlines differ: as long as somebody, in whatever database, keeps dead index
    // entries alive, those of the same deadline are walked over.
    shop.client.batch_execute("ALTER TABLE orders SET (autovacuum_enabled = off)").unwrap();
    shop.fill(1..=ROWS, "now() - interval '1 min' + id * interval '1 us'");
    shop.create_policy(", batch_size => 50");
    shop.wait_for_cancelled(ROWS);
    let settled = "SELECT n_tup_upd >= 10000 FROM pg_stat_user_tables WHERE relname = 'orders'";
    wait_for_value(&mut shop.client, settled, true);
    let read = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'orders'";
    let read = shop.value::<i64>(read);
    println!("{read} index entries read for {ROWS} rows");
    assert!(read < 40 * ROWS, "{read} index entries read for {ROWS} rows");
    shop.assert_invariant();
}

/// R35: a predicate cannot speak of other tables.
#[test]
fn predicate_of_other_tables_is_refused() {
    let mut shop = Shop::without_policy();
    shop.client.batch_execute("CREATE TABLE pay (order_id bigint)").unwrap();
    let predicate = "NOT EXISTS (SELECT FROM pay WHERE pay.order_id = orders.id)";
    let error = db_error(shop.client.batch_execute(&format!(
        "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => '{predicate}',
             cancel_function => 'cancel_order(bigint)')"
    )));
    assert!(["42P17", "0A000"].contains(&error.code().code()), "{error:?}");
}

/// R35: the cancel function sees what other tables say as it is when it is called, not as it was when the
/// row was claimed, whatever isolation is the database's default.
#[test]
fn cancel_function_sees_what_was_committed_after_the_claim() {
    let isolations = ["read committed", "repeatable read", "serializable"];
    for (isolation, by_hand) in
        isolations.iter().flat_map(|isolation| [(isolation, false), (isolation, true)])
    {
        let mut shop = Shop::with_settings(&[("default_transaction_isolation", isolation)]);
        shop.client
            .batch_execute(
                "CREATE TABLE pay (order_id bigint);
                 CREATE FUNCTION expire(order_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
                     IF EXISTS (SELECT FROM pay WHERE pay.order_id = expire.order_id) THEN RETURN false; END IF;
                     PERFORM cancel_order(order_id);
                     RETURN true;
                 END $$;
                 SELECT expiry.create_policy('orders', deadline => 'pay_by',
                     predicate => $$status = 'pending'$$, cancel_function => 'expire')",
            )
            .unwrap();
        shop.wait_for_index();
        if by_hand {
            shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
        }
        let mut holder = shop.db.connect();
        DebugPoint::Claimed.hold(&mut holder);
        shop.fill(1..=2, "now()");
        let mut hand = shop.db.connect();
        thread::scope(|scope| {
            if by_hand {
                scope.spawn(|| hand.batch_execute("CALL expiry.run('orders')").unwrap());
            }
            let held = format!(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND {})",
                DebugPoint::Claimed.sign()
            );
            wait_until("the claim", 10 * SECOND, || shop.value::<bool>(&held));
            shop.client.batch_execute("INSERT INTO pay VALUES (1)").unwrap();
            DebugPoint::Claimed.release(&mut holder);
        });
        shop.wait_for_cancelled(1);
        assert_eq!((shop.status(1), shop.status(2)), ("pending".to_owned(), "cancelled".to_owned()));
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 1);
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0, "declined is no failure");
    }
}
