//! What the row itself says, how it is named, and who may ask.

use pg_expiry_tests::{Db, Shop, db_error, wait_for_value};

use super::{assert_says, why_not};

#[test]
fn row_itself_says_why() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", starts_at => now() - interval '1 day', paused => true");
    shop.client
        .batch_execute(
            "INSERT INTO orders (id, status, pay_by) VALUES
                 (1, 'paid', now()), (2, 'pending', NULL), (3, 'pending', 'infinity'),
                 (4, 'pending', now() - interval '2 days'), (5, 'pending', now() + interval '1 h 30 min'),
                 (6, 'it''s gone', now()), (7, 'pending', now() - interval '1 min')",
        )
        .unwrap();
    let mut says = |id: &str, parts: &[&str]| assert_says(&why_not(&mut shop.client, id), parts);
    says("0", &["There is no such row in public.orders."]);
    says(
        "1",
        &["The row is not pending, the predicate (status = 'pending'", "not true of it: status = 'paid'."],
    );
    says("2", &["The row is never due: its deadline, \"pay_by\", is NULL."]);
    says("3", &["The row is never due: its deadline, \"pay_by\", is infinite."]);
    says("4", &["The row is left alone: its deadline, ", " is older than the policy's starts_at, "]);
    says(
        "5",
        &["The row is not due yet: its deadline is ", ", in 1 h 2", "; besides, policy \"orders\" is paused"],
    );
    says("6", &["not pending", "status = 'it''s gone'."]);
    says("7", &["The row is due since 1 min", ", but policy \"orders\" is paused"]);
    shop.client.batch_execute("SELECT expiry.resume()").unwrap();
    let said = why_not(&mut shop.client, "5");
    assert_says(&said, &["The row is not due yet: its deadline is "]);
}

/// The values of all columns that the predicate speaks of; and one that cannot be evaluated.
#[test]
fn predicate_is_shown_with_what_it_speaks_of() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE FUNCTION is_open(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN $1 = 'pending'; END $$;
             ALTER TABLE orders ADD \"Order;Kind\" text, ADD n int;
             SELECT expiry.create_policy('orders', deadline => 'pay_by', cancel_function => 'cancel_order(bigint)',
                 predicate => $$is_open(status) AND \"Order;Kind\" = 'web' AND n > 7$$);
             INSERT INTO orders (id, \"Order;Kind\", n) VALUES (1, NULL, 7), (2, repeat('x', 100), 8)",
        )
        .unwrap();
    assert_says(&why_not(&mut shop.client, "1"), &["status = 'pending', \"Order;Kind\" = NULL, n = '7'."]);
    let shortened = format!("\"Order;Kind\" = '{}', n = '8'.", "x".repeat(60));
    assert_says(&why_not(&mut shop.client, "2"), &[&shortened]);
    shop.client
        .batch_execute(
            "CREATE OR REPLACE FUNCTION is_open(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 1 / 0; END $$",
        )
        .unwrap();
    assert_says(&why_not(&mut shop.client, "1"), &["fails on the row: division by zero (SQLSTATE 22012)."]);
}

#[test]
fn key_is_given_as_one_likes() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.client.batch_execute("INSERT INTO orders (id, status) VALUES (9007199254740993, 'paid')").unwrap();
    for key in ["9007199254740993", "\"9007199254740993\""] {
        for key in [key.to_owned(), format!("{{\"id\": {key}}}")] {
            assert_says(&why_not(&mut shop.client, &key), &["The row is not pending"]);
        }
    }
    let wrong = [
        "null",
        "true",
        "[1]",
        "\"x\"",
        "1.5",
        "{}",
        "{\"id\": null}",
        "{\"id\": \"x\"}",
        "{\"id\": {\"id\": 1}}",
        "{\"id\": 1, \"sku\": 1}",
        "{\"ID\": 1}",
        "1e30",
    ];
    for key in wrong {
        let result = shop.client.query_one(&format!("SELECT expiry.why_not('orders', '{key}')"), &[]);
        let error = db_error(result.map(|row| row.get::<_, String>(0)));
        assert_eq!(error.code().code(), "22023", "{key}: {error:?}");
        assert!(error.hint().is_some(), "{key}");
    }
    for (call, sqlstate) in [
        ("why_not('orders', NULL)", "22023"),
        ("why_not('nobody', '1')", "42704"),
        ("why_not(NULL, '1')", "22004"),
    ] {
        let error = db_error(shop.client.batch_execute(&format!("SELECT expiry.{call}")));
        assert_eq!(error.code().code(), sqlstate, "{call}");
    }
}

/// Several columns, each of a type of its own, in a partitioned table.
#[test]
fn key_of_several_columns() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE DOMAIN code AS text CHECK (value <> 'x');
             CREATE TABLE orders (shop code, at timestamptz, no numeric, u uuid, status text, pay_by timestamptz,
                 PRIMARY KEY (shop, at, no, u)) PARTITION BY LIST (shop);
             CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN ('a');
             CREATE FUNCTION cancel(shop code, at timestamptz, no numeric, u uuid) RETURNS void LANGUAGE sql AS '';
             SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'cancel', paused => true);
             INSERT INTO orders VALUES ('a', '2026-01-01 12:00:00.123456+03', 12345678901234567890.50,
                 '00000000-0000-0000-0000-000000000001', 'pending')",
        )
        .unwrap();
    let ask = |client: &mut pg_expiry_tests::postgres::Client, key: &str| {
        client
            .query_one(&format!("SELECT expiry.why_not('orders', {key})"), &[])
            .map(|row| row.get::<_, String>(0))
    };
    for zone in ["UTC", "Asia/Tokyo"] {
        client.batch_execute(&format!("SET TimeZone = '{zone}'")).unwrap();
        for no in ["12345678901234567890.5", "\"12345678901234567890.50\""] {
            let key = format!(
                "jsonb_build_object('shop', 'a', 'at', (SELECT at FROM orders), 'u', '00000000-0000-0000-0000-000000000001') || '{{\"no\": {no}}}'"
            );
            assert_says(&ask(&mut client, &key).unwrap(), &["never due"]);
        }
    }
    for key in [
        "'\"a\"'",
        "'{\"shop\": \"x\", \"at\": \"2026-01-01\", \"no\": 1, \"u\": \"00000000-0000-0000-0000-000000000001\"}'",
    ] {
        assert_eq!(db_error(ask(&mut client, key)).code().code(), "22023", "{key}");
    }
}

/// As for preview(): the owner, and who may act for him.
#[test]
fn owner_asks_and_nobody_else() {
    let mut tenants = crate::tenants::Tenants::new(2, "");
    let [one, other] = [tenants.names[0].clone(), tenants.names[1].clone()];
    let ask = format!("SELECT expiry.why_not('{one}', '1')");
    tenants.connect(0).batch_execute(&ask).unwrap();
    tenants.superuser.batch_execute(&ask).unwrap();
    tenants.superuser.batch_execute(&format!("GRANT pg_monitor TO {other}")).unwrap();
    assert_eq!(db_error(tenants.connect(1).batch_execute(&ask)).code().code(), "42501");
    tenants.superuser.batch_execute(&format!("GRANT {one} TO {other}")).unwrap();
    tenants.connect(1).batch_execute(&ask).unwrap();
}

/// It assigns no transaction id, changes nothing on the page, and leaves no lock that is in anybody's way.
#[test]
fn question_touches_nothing() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.client.batch_execute("INSERT INTO orders (id, pay_by) VALUES (1, now())").unwrap();
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; SELECT FROM orders FOR UPDATE").unwrap();
    let trace = "SELECT ctid::text || xmin::text || xmax::text FROM orders";
    let before: String = shop.value(trace);
    shop.client.batch_execute("BEGIN READ ONLY").unwrap();
    why_not(&mut shop.client, "1");
    let id = "SELECT pg_current_xact_id_if_assigned()::text";
    assert_eq!(shop.client.query_one(id, &[]).unwrap().get::<_, Option<String>>(0), None);
    assert_eq!(shop.value::<String>(trace), before);
    holder.batch_execute("ROLLBACK; BEGIN; SELECT FROM orders FOR UPDATE NOWAIT; ROLLBACK").unwrap();
    wait_for_value(
        &mut holder,
        "SELECT count(*) FROM pg_locks WHERE locktype IN ('tuple', 'transactionid') AND pid <> pg_backend_pid()
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        0_i64,
    );
    shop.client.batch_execute("COMMIT").unwrap();
}
