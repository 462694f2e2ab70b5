//! Changes while a worker is in the middle of its work, or remembers how things were before.

use std::time::Duration;

use pg_expiry_tests::{DebugPoint, wait_for_value};

use super::common::Watched;

/// R22, with all four tables at once.
#[test]
fn four_tables_at_once() {
    let mut watched = Watched::new();
    let table = |name: &str| {
        format!(
            "CREATE TABLE {name} (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz);
             CREATE FUNCTION close_{name}(k int) RETURNS void LANGUAGE sql AS
                 $$ UPDATE {name} SET status = 'closed' WHERE id = k $$;
             SELECT expiry.create_policy('{name}', 'pay_by', $$status = 'pending'$$, 'close_{name}');
             INSERT INTO {name} VALUES (1, 'pending', now())"
        )
    };
    for name in ["a", "b", "c", "d"] {
        watched.execute(&[&table(name)]);
        let closed = format!("SELECT status FROM {name}");
        wait_for_value(&mut watched.shop.client, &closed, "closed".to_owned());
    }
    watched.execute(&[
        "DROP TABLE a",
        "ALTER TABLE b RENAME COLUMN pay_by TO due_at",
        "ALTER TABLE b RENAME TO b2",
        "CREATE OR REPLACE FUNCTION close_b(k int) RETURNS void LANGUAGE sql AS
             $$ UPDATE b2 SET status = 'closed' WHERE id = k $$",
        "ALTER TABLE c DROP COLUMN pay_by",
        "DROP FUNCTION close_d",
        "CREATE FUNCTION close_d(k int) RETURNS void LANGUAGE sql AS $$ UPDATE d SET status = 'closed again' WHERE id = k $$",
        "INSERT INTO b2 VALUES (2, 'pending', now())",
        "INSERT INTO d VALUES (2, 'pending', now())",
    ]);
    wait_for_value(&mut watched.shop.client, "SELECT status FROM b2 WHERE id = 2", "closed".to_owned());
    wait_for_value(&mut watched.shop.client, "SELECT status FROM d WHERE id = 2", "closed again".to_owned());
    let states = "SELECT string_agg(concat_ws(' ', name, state, substring(reason FROM 'SQLSTATE .....')), ', ' ORDER BY name)
                  FROM expiry.status";
    let expected = "b active, bills active, c stopped SQLSTATE 42703, d active, orders active";
    wait_for_value(&mut watched.shop.client, states, expected.to_owned());
    let b = "SELECT relation::text || ' ' || deadline FROM expiry.policy WHERE name = 'b'";
    assert_eq!(watched.shop.value::<String>(b), "b2 due_at");
    watched.assert_unharmed();
}

/// Makes the worker wait inside the call for order `id`, of several that are due.
fn in_the_middle_of_a_batch(watched: &mut Watched) {
    watched.shop.replace_cancel_order(
        "WHILE order_id = 12 AND (SELECT is_closed FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
         -- Something new is locked, and so it becomes known what has changed.
         IF order_id = 12 THEN PERFORM FROM pg_statistic_ext; END IF;
         UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id",
    );
    watched.execute(&["CREATE TABLE gate AS SELECT true AS is_closed"]);
    watched.shop.fill(11..=15, "now() + id * interval '1 us'");
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    wait_for_value(&mut watched.shop.client, waits, 1_i64);
}

/// No row is to blame for that.
#[test]
fn function_that_goes_while_it_is_called() {
    let definition = "SELECT pg_get_functiondef('cancel_order(bigint)'::regprocedure)";
    for comes_back_at_once in [true, false] {
        let mut watched = Watched::new();
        let body: String = watched.shop.value(definition);
        watched.execute(&["SELECT expiry.alter_policy('orders', max_attempts => 1)"]);
        watched.shop.settle();
        in_the_middle_of_a_batch(&mut watched);
        let drop = "DROP FUNCTION cancel_order(bigint)";
        if comes_back_at_once {
            watched.execute(&[&format!("BEGIN; {drop}; {body}; COMMIT")]);
            watched.execute(&["UPDATE gate SET is_closed = false"]);
        } else {
            watched.execute(&[drop, "UPDATE gate SET is_closed = false"]);
            watched.wait_for_state("stopped", "42883");
            watched.execute(&[&body]);
        }
        watched.shop.wait_for_cancelled(6);
        watched.assert_unharmed();
        watched.shop.assert_invariant();
    }
}

/// What a session remembers of a table, PL/pgSQL above all, can be out of date after a change. A client would
/// connect anew.
#[test]
fn what_a_session_remembers() {
    let bodies = [
        // "type of parameter does not match that when preparing the plan"
        "SELECT * INTO o FROM orders WHERE id = order_id;
         IF o.sku < 0 THEN RETURN; END IF;
         UPDATE stock SET qty = qty + 1 WHERE sku = o.sku",
        "FOR o IN SELECT * FROM orders WHERE id = order_id LOOP
             UPDATE stock SET qty = qty + 1 WHERE sku = o.sku;
         END LOOP",
        "FOR typed IN SELECT * FROM orders WHERE id = order_id LOOP
             UPDATE stock SET qty = qty + 1 WHERE sku = typed.sku;
         END LOOP",
        "EXECUTE 'SELECT sku FROM orders WHERE id = $1' INTO o USING order_id;
         UPDATE stock SET qty = qty + 1 WHERE sku = o.sku",
    ];
    let changes = [
        "ALTER TABLE orders ALTER sku TYPE bigint",
        "ALTER TABLE orders ADD first int DEFAULT 7",
        "ALTER TABLE orders DROP first",
    ];
    for body in bodies {
        let mut watched = Watched::new();
        watched
            .shop
            .client
            .batch_execute(&format!(
                "CREATE OR REPLACE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE plpgsql AS $$
                 DECLARE o record; typed orders;
                 BEGIN {body};
                     UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id;
                 END $$"
            ))
            .unwrap();
        for (n, change) in (2..).zip(changes) {
            watched.shop.due(n * 10, Duration::ZERO);
            watched.shop.wait_for_cancelled(n * 2 - 2);
            watched.execute(&[change]);
            watched.shop.due(n * 10 + 1, Duration::ZERO);
            watched.shop.wait_for_cancelled(n * 2 - 1);
            let failed = "SELECT failed FROM expiry.status WHERE name = 'orders'";
            assert_eq!(watched.shop.value::<i64>(failed), 0, "{body}; {change}");
        }
        watched.shop.assert_invariant();
    }
}

/// Order 2 becomes due, and the worker comes to this point with it.
fn hold_order_2(watched: &mut Watched, point: DebugPoint) {
    point.hold(&mut watched.shop.client);
    watched.shop.due(2, Duration::ZERO);
    let held = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {}",
        point.sign()
    );
    wait_for_value(&mut watched.shop.client, &held, 1_i64);
}

/// A row may be committed together with a new body of the function, and the claim sees it with the old one
/// still in the worker's caches.
#[test]
fn function_that_is_replaced_between_claim_and_call() {
    let mut watched = Watched::new();
    hold_order_2(&mut watched, DebugPoint::Claimed);
    watched.shop.replace_cancel_order("UPDATE orders SET status = 'closed' WHERE id = order_id");
    DebugPoint::Claimed.release(&mut watched.shop.client);
    wait_for_value(&mut watched.shop.client, "SELECT status FROM orders WHERE id = 2", "closed".to_owned());
    watched.assert_unharmed();
}

/// The worker finds out that the name is another table's when it has begun a batch, and claims nothing of that one.
#[test]
fn table_that_takes_the_name_of_another_in_the_middle() {
    let mut watched = Watched::new();
    hold_order_2(&mut watched, DebugPoint::Begun);
    watched.execute(&[
        "BEGIN; ALTER TABLE orders RENAME TO old_orders; CREATE TABLE orders (LIKE old_orders INCLUDING ALL);
         INSERT INTO orders (id, pay_by) VALUES (3, now() - interval '1 day');
         CREATE OR REPLACE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE plpgsql AS $$
         BEGIN
             UPDATE orders SET status = 'cancelled' WHERE id = order_id;
             UPDATE old_orders SET status = 'cancelled' WHERE id = order_id;
         END $$; COMMIT",
    ]);
    DebugPoint::Begun.release(&mut watched.shop.client);
    let cancelled = "SELECT status FROM old_orders WHERE id = 2";
    wait_for_value(&mut watched.shop.client, cancelled, "cancelled".to_owned());
    watched.assert_unharmed();
    assert_eq!(watched.shop.status(3), "pending");
    let others =
        "SELECT count(*) FROM expiry.event WHERE policy = 'orders' AND key ->> 'id' NOT IN ('1', '2')";
    assert_eq!(watched.shop.value::<i64>(others), 0);
}
