//! What the policy says, and its index.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, wait_for_value, wait_until};

use super::{PATIENCE, assert_says, wait_for_answer, why_not};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn policy_that_does_nothing_says_why() {
    let mut shop = Shop::new();
    shop.client.batch_execute("SELECT expiry.pause()").unwrap();
    shop.due(1, 100 * SECOND);
    let paused = why_not(&mut shop.client, "1");
    assert_says(
        &paused,
        &[
            "due since 1 min ",
            ", but policy \"orders\" is paused: SELECT expiry.resume('orders') lets it go on.",
        ],
    );

    // Broken for all rows: tripped.
    shop.replace_cancel_order("RAISE 'broken'");
    shop.client.batch_execute("SELECT expiry.resume()").unwrap();
    shop.fill(2..=40, "now()");
    wait_for_answer(
        &mut shop.client,
        "1",
        &["policy \"orders\" has paused itself: every call fails", "broken"],
    );
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();

    // Its index cannot be built: stopped, and the row can be looked at all the same.
    shop.client
        .batch_execute(
            "CREATE FUNCTION is_open(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS
                 $$ BEGIN IF $1 = 'bad' THEN RAISE 'bad status'; END IF; RETURN $1 = 'pending'; END $$;
             INSERT INTO orders (id, status) VALUES (100, 'bad')",
        )
        .unwrap();
    shop.client
        .batch_execute(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => 'is_open(status)',
                 cancel_function => 'cancel_order(bigint)')",
        )
        .unwrap();
    wait_for_answer(
        &mut shop.client,
        "1",
        &[
            "The row is due since ",
            "but policy \"orders\" is stopped: the deadline index could not be built: bad status",
        ],
    );
    // Something is gone without which nothing can be said of a row.
    shop.client
        .batch_execute("ALTER FUNCTION cancel_order(bigint) RENAME TO other; DROP FUNCTION other")
        .unwrap();
    wait_for_answer(
        &mut shop.client,
        "1",
        &["The row cannot be looked at: policy \"orders\" is stopped: cancel function ", "42883"],
    );
}

#[test]
fn setting_that_stops_all_is_told() {
    let mut shop = Shop::new();
    shop.set_for_database("pg_expiry.enabled", "off");
    shop.due(1, SECOND);
    let said = why_not(&mut shop.db.connect(), "1");
    assert_says(&said, &["The row is due since ", ", but pg_expiry.enabled is off."]);
}

#[test]
fn cloned_policy_waits_to_be_resumed() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    shop.due(1, SECOND);
    let clone = cluster.create_database();
    let mut admin = cluster.connect("postgres");
    admin.batch_execute(&format!("DROP DATABASE {}", clone.name)).unwrap();
    drop(shop.client);
    wait_until("nobody in the template", PATIENCE, || {
        admin.batch_execute(&format!("CREATE DATABASE {} TEMPLATE {}", clone.name, shop.db.name))
    });
    let mut client = clone.connect();
    let said = why_not(&mut client, "1");
    assert_says(
        &said,
        &["but policy \"orders\" came with a dump or a cloned database: SELECT expiry.resume('orders')"],
    );
    client.batch_execute("SELECT expiry.resume('orders')").unwrap();
    wait_for_answer(&mut client, "1", &["The row is not pending"]);
}

/// Plain and partitioned; the build waits for a transaction, and who that is can be seen.
#[test]
fn index_that_is_being_built_is_told() {
    for partitions in [false, true] {
        let mut shop = Shop::without_policy();
        if partitions {
            shop.client
                .batch_execute(
                    "ALTER TABLE orders RENAME TO orders_1; ALTER TABLE orders_1 RENAME CONSTRAINT orders_pkey TO pk1;
                     CREATE TABLE orders (LIKE orders_1 INCLUDING DEFAULTS, PRIMARY KEY (id)) PARTITION BY RANGE (id);
                     ALTER TABLE orders ATTACH PARTITION orders_1 FOR VALUES FROM (0) TO (100)",
                )
                .unwrap();
        }
        let mut open = shop.db.connect();
        let table = if partitions { "orders_1" } else { "orders" };
        open.batch_execute(&format!("BEGIN; INSERT INTO {table} (id, pay_by) VALUES (2, now())")).unwrap();
        let pid: i32 = open.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        shop.due(1, SECOND);
        shop.create_policy("");
        let waits = format!("waits for pid {pid}.");
        wait_for_answer(
            &mut shop.client,
            "1",
            &[
                "The row is due since ",
                ", but its deadline index is being built: waiting for writers",
                &waits,
            ],
        );
        open.batch_execute("COMMIT").unwrap();
        wait_for_answer(&mut shop.client, "1", &["The row is not pending"]);
        wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 2_i64);
    }
}
