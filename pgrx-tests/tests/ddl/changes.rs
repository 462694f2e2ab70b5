//! One change after the other.

use pg_expiry_tests::{wait_for_value, wait_until, worker_pids};

use super::common::Outcome::{GoesOn, IsGone, Stops};
use super::common::{Outcome, SECOND, Watched};

const DUE: &str = "INSERT INTO orders (id, pay_by) VALUES (2, now())";
const CANCELLED: &str = "SELECT status::text = 'cancelled' FROM orders WHERE id::text = '2'";

/// One after the other; the policy goes on after each.
fn all_go_on(cases: &[&[&str]]) {
    let mut watched = Watched::new();
    for (id, statements) in (2..).zip(cases) {
        println!("{statements:?}");
        let due = format!("INSERT INTO orders (id, pay_by) VALUES ({id}, now())");
        let cancelled = format!("SELECT status = 'cancelled' FROM orders WHERE id = {id}");
        watched.assert_comes_to(statements, GoesOn, &due, &cancelled);
    }
    watched.assert_leaves_nothing();
}

/// Each in a shop of its own.
fn each_comes_to(cases: &[(&[&str], Outcome)]) {
    for (statements, outcome) in cases {
        println!("{statements:?}: {outcome:?}");
        let mut watched = Watched::new();
        watched.assert_comes_to(statements, *outcome, DUE, CANCELLED);
        watched.assert_leaves_nothing();
    }
}

#[test]
fn rewritten_table() {
    all_go_on(&[
        &["VACUUM FULL orders"],
        &["CLUSTER orders USING orders_pkey"],
        &["ALTER TABLE orders ALTER sku TYPE bigint"],
        &["ALTER TABLE orders ADD extra uuid DEFAULT gen_random_uuid()"],
        &["ALTER TABLE orders SET UNLOGGED", "ALTER TABLE orders SET LOGGED"],
        &["TRUNCATE orders"],
        &["BEGIN; TRUNCATE orders; INSERT INTO orders (id, pay_by) VALUES (1000000, 'infinity'); COMMIT"],
        &["REINDEX TABLE orders"],
        &["REINDEX TABLE CONCURRENTLY orders"],
        &["REINDEX INDEX CONCURRENTLY orders_pay_by_expiry_idx"],
        &["ALTER INDEX orders_pay_by_expiry_idx RENAME TO my_expiry_idx"],
        &["REINDEX INDEX CONCURRENTLY my_expiry_idx"],
    ]);
}

#[test]
fn changes_beside_the_point() {
    all_go_on(&[
        &["BEGIN; DROP TABLE orders; ROLLBACK"],
        &["ALTER TABLE orders ADD note text", "ALTER TABLE orders DROP note", "ANALYZE orders"],
        &["ALTER TABLE orders ADD pg_expiry_row text DEFAULT 'x'"],
        &[
            "ALTER TABLE orders SET (fillfactor = 50)",
            "ALTER TABLE orders ALTER pay_by SET STATISTICS 500",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            "CREATE TABLE line (order_id bigint REFERENCES orders)",
            "CREATE STATISTICS s ON sku, status FROM orders",
            "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY p ON orders USING (false)",
            "ALTER TABLE orders ADD CHECK (id > 0)",
            "ALTER TABLE orders ALTER pay_by SET NOT NULL",
        ],
        &["BEGIN; ALTER TABLE orders DROP pay_by; DROP FUNCTION cancel_order; ROLLBACK"],
        &["CREATE TABLE old_orders () INHERITS (orders)"],
    ]);
}

#[test]
fn key() {
    let again = &["ALTER TABLE orders ADD PRIMARY KEY (id)"];
    each_comes_to(&[
        (&["ALTER TABLE orders ALTER id TYPE int"], GoesOn),
        // Not every number is one that the function takes.
        (
            &["ALTER TABLE orders ALTER id TYPE numeric"],
            Stops("42883", &["ALTER TABLE orders ALTER id TYPE bigint"]),
        ),
        (&["ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD UNIQUE (id)"], GoesOn),
        (&["ALTER TABLE orders DROP CONSTRAINT orders_pkey"], Stops("42P10", again)),
        (
            &["ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id, sku)"],
            Stops("42883", &["ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)"]),
        ),
        (
            &["ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD UNIQUE (id), ALTER id DROP NOT NULL"],
            Stops("42P10", &["ALTER TABLE orders ALTER id SET NOT NULL"]),
        ),
        (
            &["ALTER TABLE orders ALTER id TYPE text"],
            Stops(
                "42883",
                &["CREATE FUNCTION cancel_order(order_id text) RETURNS void LANGUAGE sql AS
                       $$ UPDATE orders SET status = 'cancelled' WHERE id = order_id $$;
                   SELECT expiry.alter_policy('orders', cancel_function => 'cancel_order(text)')"],
            ),
        ),
    ]);
}

#[test]
fn deadline() {
    each_comes_to(&[
        (&["ALTER TABLE orders ALTER pay_by TYPE timestamptz(0)"], GoesOn),
        (
            &[
                "ALTER TABLE orders ALTER pay_by SET DEFAULT now()",
                "ALTER TABLE orders RENAME pay_by TO x",
                "ALTER TABLE orders RENAME x TO pay_by",
            ],
            GoesOn,
        ),
        (
            &["ALTER TABLE orders ALTER pay_by TYPE timestamp"],
            Stops("time_zone", &["SELECT expiry.alter_policy('orders', time_zone => 'UTC')"]),
        ),
        (
            &["ALTER TABLE orders ALTER pay_by TYPE date"],
            Stops("time_zone", &["ALTER TABLE orders ALTER pay_by TYPE timestamptz"]),
        ),
        (
            &["ALTER TABLE orders ALTER pay_by TYPE bigint USING extract(epoch FROM pay_by)"],
            Stops("epoch", &["ALTER TABLE orders ALTER pay_by TYPE timestamptz USING to_timestamp(pay_by)"]),
        ),
        (
            &["ALTER TABLE orders ALTER pay_by TYPE text"],
            Stops("42804", &["ALTER TABLE orders ALTER pay_by TYPE timestamptz USING pay_by::timestamptz"]),
        ),
        (
            &["ALTER TABLE orders DROP pay_by"],
            Stops(
                "42703",
                &[
                    "ALTER TABLE orders ADD pay_by timestamptz; SELECT expiry.alter_policy('orders', deadline => 'pay_by')",
                ],
            ),
        ),
    ]);
}

#[test]
fn predicate() {
    each_comes_to(&[
        (&["ALTER TABLE orders ALTER status TYPE varchar(20)"], GoesOn),
        (
            &[
                "CREATE TYPE state AS ENUM ('pending', 'cancelled', 'paid')",
                "BEGIN; DROP INDEX orders_pay_by_expiry_idx; ALTER TABLE orders ALTER status DROP DEFAULT,
                     ALTER status TYPE state USING status::state, ALTER status SET DEFAULT 'pending'; COMMIT",
            ],
            Stops("42883", &["SELECT expiry.alter_policy('orders', predicate => $$status = 'pending'$$)"]),
        ),
        (
            &["ALTER TABLE orders DROP status"],
            Stops(
                "42703",
                &["ALTER TABLE orders ADD status text DEFAULT 'pending';
                   SELECT expiry.alter_policy('orders', predicate => $$status = 'pending'$$)"],
            ),
        ),
    ]);
}

const BODY: &str = "BEGIN
    UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
    UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id; ";

#[test]
fn function() {
    let create = |what: &str| format!("{what} LANGUAGE plpgsql AS $$ {BODY}");
    let same = format!("{} END $$", create("CREATE FUNCTION cancel_order(order_id bigint) RETURNS void"));
    let verdict = format!(
        "{} RETURN true; END $$",
        create("CREATE FUNCTION cancel_order(order_id bigint) RETURNS boolean")
    );
    let renamed = format!("{} END $$", create("CREATE FUNCTION close_order(order_id bigint) RETURNS void"));
    let drop = "DROP FUNCTION cancel_order(bigint)";
    let text =
        "CREATE FUNCTION cancel_order(order_id bigint) RETURNS text LANGUAGE sql AS $$ SELECT 'done' $$";
    let again: &'static [&'static str] = vec![&*drop.to_owned().leak(), &*same.clone().leak()].leak();
    let create_again: &'static [&'static str] = vec![&*same.clone().leak()].leak();
    let other_name: &'static [&'static str] =
        vec![&*renamed.leak(), "SELECT expiry.alter_policy('orders', cancel_function => 'close_order')"]
            .leak();
    each_comes_to(&[
        (&[&format!("BEGIN; {drop}; {same}; COMMIT")], GoesOn),
        (&[&format!("BEGIN; {drop}; {verdict}; COMMIT")], GoesOn),
        (&["ALTER FUNCTION cancel_order VOLATILE SECURITY DEFINER COST 1 SET work_mem = '1MB'"], GoesOn),
        (&[drop], Stops("42883", create_again)),
        (&[drop], Stops("42883", other_name)),
        (&[&format!("BEGIN; {drop}; {text}; COMMIT")], Stops("42P13", again)),
    ]);
}

/// R22: the new body is used at once.
#[test]
fn function_with_another_body() {
    let mut watched = Watched::new();
    watched.shop.replace_cancel_order("UPDATE orders SET status = 'closed' WHERE id = order_id");
    watched.execute(&[DUE]);
    wait_for_value(&mut watched.shop.client, "SELECT status FROM orders WHERE id = 2", "closed".to_owned());
    watched.assert_unharmed();
}

#[test]
fn index() {
    let rebuilt = "SELECT status = 'cancelled' AND EXISTS (SELECT FROM pg_class WHERE relname = 'orders_pay_by_expiry_idx')
                   FROM orders WHERE id = 2";
    for drop in ["DROP INDEX orders_pay_by_expiry_idx", "DROP INDEX CONCURRENTLY orders_pay_by_expiry_idx"] {
        let mut watched = Watched::new();
        watched.assert_comes_to(&[drop], GoesOn, DUE, rebuilt);
        watched.assert_leaves_nothing();
    }
}

#[test]
fn table_that_is_dropped() {
    each_comes_to(&[(&["DROP TABLE orders"], IsGone), (&["DROP TABLE stock, orders CASCADE"], IsGone)]);
    let mut watched = Watched::new();
    watched.execute(&["CREATE SCHEMA s; ALTER TABLE orders SET SCHEMA s"]);
    watched.assert_comes_to(&["DROP SCHEMA s CASCADE"], IsGone, "", "");
    // Another table of that name has no policy until somebody makes one.
    let mut watched = Watched::new();
    watched.assert_comes_to(
        &["DROP TABLE orders; CREATE TABLE orders (id bigint PRIMARY KEY, sku int DEFAULT 1, status text DEFAULT 'pending',
               pay_by timestamptz, cancelled_at timestamptz)", DUE],
        IsGone,
        "",
        "",
    );
    assert_eq!(watched.shop.status(2), "pending");
    watched.shop.create_policy("");
    watched.shop.wait_for_cancelled(1);
    watched.assert_unharmed();
}

/// There is no worker, but policies are looked after.
#[test]
fn table_of_a_paused_policy_that_is_dropped() {
    let mut watched = Watched::new();
    watched.execute(&["SELECT expiry.pause()", "DROP TABLE orders", "SELECT expiry.pause()"]);
    wait_for_value(
        &mut watched.shop.client,
        "SELECT string_agg(name, ', ') FROM expiry.policy",
        "bills".to_owned(),
    );
    wait_for_value(
        &mut watched.shop.client,
        "SELECT string_agg(policy, ', ') FROM expiry.binding",
        "bills".to_owned(),
    );
}

/// A predicate names a value of a type: by its number, too.
#[test]
fn value_that_is_renamed() {
    let mut watched = Watched::new();
    watched.execute(&[
        "CREATE TYPE state AS ENUM ('open', 'closed')",
        "CREATE TABLE seats (id int PRIMARY KEY, state state DEFAULT 'open', till timestamptz)",
        "CREATE FUNCTION free_seat(k int) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN EXECUTE format('UPDATE seats SET state = %L WHERE id = %s', enum_last(NULL::state), k); END $$",
        "SELECT expiry.create_policy('seats', 'till', $$state = 'open'$$, 'free_seat')",
        "INSERT INTO seats VALUES (1, 'open', now())",
    ]);
    let closed = |id: i32| format!("SELECT state = enum_last(NULL::state) FROM seats WHERE id = {id}");
    wait_for_value(&mut watched.shop.client, &closed(1), true);
    watched.execute(&[
        "ALTER TYPE state RENAME VALUE 'open' TO 'taken'",
        "INSERT INTO seats VALUES (2, 'taken', now())",
    ]);
    wait_for_value(&mut watched.shop.client, &closed(2), true);
    // Now all is loaded anew.
    watched.execute(&["ALTER TABLE seats ADD note text", "INSERT INTO seats VALUES (3, 'taken', now())"]);
    wait_for_value(&mut watched.shop.client, &closed(3), true);
    let predicate = "SELECT predicate FROM expiry.policy WHERE name = 'seats'";
    wait_for_value(&mut watched.shop.client, predicate, "(state = 'taken'::public.state)".to_owned());
    watched.assert_unharmed();
}

/// The table is another one; the policy stays with the one that it was made for.
#[test]
fn tables_that_change_places() {
    let mut watched = Watched::new();
    watched.assert_comes_to(
        &["BEGIN; ALTER TABLE orders RENAME TO old_orders; CREATE TABLE orders (LIKE old_orders INCLUDING ALL);
           ALTER TABLE old_orders SET UNLOGGED; COMMIT"],
        GoesOn,
        "INSERT INTO old_orders (id, pay_by) VALUES (2, now()); INSERT INTO orders (id, pay_by) VALUES (2, now());
         CREATE OR REPLACE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE sql AS
             $$ UPDATE old_orders SET status = 'cancelled' WHERE id = order_id $$",
        "SELECT status = 'cancelled' FROM old_orders WHERE id = 2",
    );
    assert_eq!(watched.shop.status(2), "pending");
    assert_eq!(
        watched.shop.value::<String>("SELECT relation::text FROM expiry.policy WHERE name = 'orders'"),
        "old_orders"
    );
}

#[test]
fn schema_of_table_and_function() {
    let mut watched = Watched::new();
    watched.assert_comes_to(
        &[
            "CREATE SCHEMA s",
            "ALTER TABLE orders SET SCHEMA s",
            "ALTER FUNCTION cancel_order SET SCHEMA s",
            "ALTER TABLE stock SET SCHEMA s",
        ],
        GoesOn,
        "INSERT INTO s.orders (id, pay_by) VALUES (2, now())",
        "SELECT status = 'cancelled' FROM s.orders WHERE id = 2",
    );
    watched.assert_leaves_nothing();
}

/// A worker of the new owner takes over; the old owner's has its other policy still.
#[test]
fn owner() {
    let mut watched = Watched::new();
    let role = format!("{}_role", watched.shop.db.name);
    watched.execute(&[
        &format!("CREATE ROLE {role}; GRANT ALL ON stock TO {role}; ALTER TABLE orders OWNER TO {role}"),
        DUE,
    ]);
    wait_for_value(&mut watched.shop.client, CANCELLED, true);
    wait_for_value(
        &mut watched.shop.client,
        "SELECT owner::text FROM expiry.policy WHERE name = 'orders'",
        role.clone(),
    );
    watched.assert_others_are_served();
    // A batch of the old owner's that waited for the lock of ALTER TABLE may have cancelled the order, and the new
    // owner's worker be still to come.
    let old = watched.pid;
    wait_until("a worker of each owner", 20 * SECOND, || {
        let pids = worker_pids(&mut watched.shop.client);
        if pids.contains(&old) && pids.len() == 2 { Ok(()) } else { Err(pids) }
    });
    watched.execute(&[
        "ALTER TABLE orders OWNER TO postgres",
        "INSERT INTO orders (id, pay_by) VALUES (3, now())",
    ]);
    wait_for_value(
        &mut watched.shop.client,
        "SELECT status FROM orders WHERE id = 3",
        "cancelled".to_owned(),
    );
    wait_until("the other worker to leave", 20 * SECOND, || {
        worker_pids(&mut watched.shop.client) == [watched.pid]
    });
    watched.assert_unharmed();
    watched.execute(&[&format!("DROP OWNED BY {role}; DROP ROLE {role}")]);
}
