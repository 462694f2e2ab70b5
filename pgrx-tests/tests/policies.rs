//! Policies that are right: what is stored, what follows renames, what stops and what goes on again.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Db, Shop, db_error, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_is_stored_is_qualified() {
    let mut shop = Shop::new();
    let row = shop
        .client
        .query_one(
            "SELECT relation::text, owner::text, deadline, predicate, cancel_function FROM expiry.policy",
            &[],
        )
        .unwrap();
    let stored: [&str; 5] = std::array::from_fn(|column| row.get(column));
    assert_eq!(
        stored,
        ["orders", "postgres", "pay_by", "(status = 'pending'::text)", "public.cancel_order(bigint)"]
    );
}

#[test]
fn same_table_name_in_two_schemas() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "CREATE SCHEMA branch; CREATE TABLE branch.orders (LIKE orders INCLUDING ALL);
             CREATE FUNCTION branch.cancel_order(k bigint) RETURNS void LANGUAGE sql
                 AS $$ UPDATE branch.orders SET status = 'closed' WHERE id = k $$;
             INSERT INTO branch.orders VALUES (1, 1, 'pending', now() - interval '1 s')",
        )
        .unwrap();
    shop.due(1, SECOND);
    let name: String = shop.value(
        "SELECT expiry.create_policy('branch.orders', 'pay_by', $$status = 'pending'$$, 'branch.cancel_order')",
    );
    assert_eq!(name, "branch.orders");
    wait_for_value(&mut shop.client, "SELECT status FROM branch.orders", "closed".to_owned());
    wait_for_value(&mut shop.client, "SELECT status FROM orders", "cancelled".to_owned());
    wait_for_value(
        &mut shop.client,
        "SELECT count(*) FROM expiry.event WHERE policy = 'branch.orders'",
        1_i64,
    );
}

#[test]
fn odd_names_and_types() {
    let db = Db::with_extension();
    let mut client = db.connect();
    let long = "l".repeat(63);
    client
        .batch_execute(&format!(
            r#"CREATE SCHEMA "My Shop";
            CREATE TYPE "My Shop"."Sta'te" AS ENUM ('new "one"', 'gone');
            CREATE TABLE "My Shop"."Order;Items" ("ID" uuid, "select" text COLLATE "C", "%s" int, "Pay By" timestamptz,
                "{long}" "My Shop"."Sta'te" DEFAULT 'new "one"', PRIMARY KEY ("ID", "select", "%s"));
            CREATE FUNCTION "My Shop"."Can;cel"(o "My Shop"."Order;Items") RETURNS boolean LANGUAGE sql AS
                $$ UPDATE "My Shop"."Order;Items" SET "{long}" = 'gone' WHERE "ID" = o."ID"; SELECT true $$;
            INSERT INTO "My Shop"."Order;Items"
                SELECT gen_random_uuid(), E'quo"te''s\\ \n' || n, n, now() FROM generate_series(1, 3) n;
            SELECT expiry.create_policy('"My Shop"."Order;Items"', '"Pay By"', $$"{long}" = 'new "one"'$$,
                '"My Shop"."Can;cel"', name => 'the "policy''s" name')"#
        ))
        .unwrap();
    let gone = format!(r#"SELECT count(*) FROM "My Shop"."Order;Items" WHERE "{long}" = 'gone'"#);
    wait_for_value(&mut client, &gone, 3_i64);
    wait_for_value(
        &mut client,
        "SELECT count(*) FROM expiry.event WHERE policy = 'the \"policy''s\" name'",
        3_i64,
    );
    let index = "SELECT octet_length(c.relname) <= 63 AND c.relname LIKE '%\\_expiry\\_idx'
                 FROM expiry.binding b JOIN pg_class c ON c.oid = b.index";
    wait_for_value(&mut client, index, true);
}

#[test]
fn settings_stand_in_for_what_is_not_given() {
    let mut shop = Shop::without_policy();
    let name = shop.db.name.clone();
    shop.client
        .batch_execute(&format!(
            "ALTER DATABASE {name} SET pg_expiry.deadline = 'pay_by';
             ALTER DATABASE {name} SET pg_expiry.predicate = $$status = 'pending'$$;
             ALTER DATABASE {name} SET pg_expiry.cancel_function = 'cancel_order(bigint)'"
        ))
        .unwrap();
    let mut client = shop.db.connect();
    client
        .batch_execute("SET search_path = pg_catalog; SELECT expiry.create_policy('public.orders')")
        .unwrap();
    shop.due(1, SECOND);
    // The worker was started before the settings, or after them: then it sees them at once.
    wait_for_value(
        &mut shop.client,
        "SELECT deadline IS NULL AND predicate IS NULL FROM expiry.policy",
        true,
    );
    shop.settle();
    shop.assert_invariant();
}

#[test]
fn without_preload_one_is_told() {
    let cluster = Cluster::builder().preload(false).start();
    let db = cluster.create_database();
    db.create_extension();
    let mut shop = Shop::in_database(db);
    let (mut client, notices) = shop.db.connect_with_notices("postgres");
    shop.due(1, SECOND);
    client
        .batch_execute(
            "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)')",
        )
        .unwrap();
    let said = notices.take("NOTICE");
    assert!(said[0].message().contains("1 rows of public.orders are due already"), "{said:?}");
    assert!(said[1].message().contains("shared_preload_libraries"), "{said:?}");
    // The index that CALL run() builds goes with the policy, at the next run().
    let indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'orders'";
    client.batch_execute("CALL expiry.run()").unwrap();
    wait_for_value(&mut client, indexes, 2_i64);
    client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    client.batch_execute("CALL expiry.run()").unwrap();
    wait_for_value(&mut client, indexes, 1_i64);
    shop.assert_invariant();
}

#[test]
fn backlog_is_counted_to_ten_thousand() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=10_001, "now() - interval '1 day'");
    let (mut client, notices) = shop.db.connect_with_notices("postgres");
    let create = |more: &str| {
        format!(
            "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)', \
             paused => true{more})"
        )
    };
    client.batch_execute(&create("")).unwrap();
    assert!(notices.take("NOTICE")[0].message().starts_with("10000+ rows"));
    client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    client.batch_execute(&create(", starts_at => now()")).unwrap();
    assert!(notices.take("NOTICE").is_empty(), "none since starts_at");
}

#[test]
fn renames_are_followed() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "BEGIN;
             ALTER TABLE orders RENAME COLUMN pay_by TO due_at;
             ALTER TABLE orders RENAME COLUMN status TO \"Sta;te\";
             ALTER TABLE orders RENAME TO bills;
             CREATE SCHEMA moved; ALTER TABLE bills SET SCHEMA moved;
             ALTER FUNCTION cancel_order(bigint) RENAME TO close_bill; ALTER FUNCTION close_bill(bigint) SET SCHEMA moved;
             CREATE OR REPLACE FUNCTION moved.close_bill(order_id bigint) RETURNS void LANGUAGE sql
                 AS $$ UPDATE moved.bills SET \"Sta;te\" = 'closed' WHERE id = order_id $$;
             INSERT INTO moved.bills (id, due_at) VALUES (1, now());
             COMMIT",
        )
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT \"Sta;te\" FROM moved.bills", "closed".to_owned());
    let names = "SELECT concat_ws(' | ', relation, deadline, predicate, cancel_function) FROM expiry.policy";
    wait_for_value(
        &mut shop.client,
        names,
        "moved.bills | due_at | (\"Sta;te\" = 'pending'::text) | moved.close_bill(bigint)".to_owned(),
    );
}

#[test]
fn type_and_schema_of_a_predicate_are_followed() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE SCHEMA old; CREATE TYPE old.state AS ENUM ('open', 'closed');
             CREATE TABLE old.t (id int PRIMARY KEY, s old.state DEFAULT 'open', at timestamptz);
             CREATE FUNCTION old.f(k int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE t SET s = 'closed' WHERE id = k; END $$;
             SELECT expiry.create_policy('old.t', 'at', $$s = 'open'$$, 'old.f');
             ALTER SCHEMA old RENAME TO new; ALTER TYPE new.state RENAME TO \"St ate\";
             INSERT INTO new.t VALUES (1, 'open', now())",
        )
        .unwrap();
    wait_for_value(&mut client, "SELECT s::text FROM new.t", "closed".to_owned());
    let predicate = "SELECT predicate FROM expiry.policy".to_owned();
    wait_for_value(&mut client, &predicate, "(s = 'open'::new.\"St ate\")".to_owned());
}

/// The state and the SQLSTATE of its reason.
fn wait_for_state(shop: &mut Shop, state: &str, sqlstate: &str) {
    wait_until(format_args!("state {state} {sqlstate}"), 10 * SECOND, || {
        let row =
            shop.client.query_one("SELECT state, coalesce(reason, '') FROM expiry.status", &[]).unwrap();
        let (is, reason): (String, String) = (row.get(0), row.get(1));
        let is_so = is == state && reason.contains(sqlstate);
        if is_so { Ok(()) } else { Err(format!("{is}: {reason}")) }
    });
}

#[test]
fn what_is_gone_stops_a_policy_and_what_comes_back_lets_it_go_on() {
    let mut shop = Shop::new();
    shop.due(1, SECOND);
    shop.settle();
    let body: String = shop.value("SELECT pg_get_functiondef('cancel_order(bigint)'::regprocedure)");

    shop.client.batch_execute("DROP FUNCTION cancel_order(bigint)").unwrap();
    wait_for_state(&mut shop, "stopped", "42883");
    shop.due(2, SECOND);
    shop.client.batch_execute(&body).unwrap();
    shop.settle();
    wait_for_state(&mut shop, "active", "");

    shop.client
        .batch_execute("ALTER TABLE orders RENAME status TO s; ALTER TABLE orders ADD status text")
        .unwrap();
    wait_for_state(&mut shop, "active", "");
    let predicate: String = shop.value("SELECT predicate FROM expiry.policy");
    wait_for_value(&mut shop.client, "SELECT predicate LIKE '(s = %' FROM expiry.policy", true);
    assert!(!predicate.is_empty());
    shop.client
        .batch_execute("ALTER TABLE orders DROP status; ALTER TABLE orders RENAME s TO status")
        .unwrap();

    shop.client.batch_execute("ALTER TABLE orders DROP COLUMN pay_by").unwrap();
    wait_for_state(&mut shop, "stopped", "42703");
    shop.client.batch_execute("ALTER TABLE orders ADD COLUMN pay_by timestamptz DEFAULT 'infinity'").unwrap();
    // Another column of that name is another column: the user says so.
    wait_for_state(&mut shop, "stopped", "42703");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', deadline => 'pay_by')").unwrap();
    shop.due(3, SECOND);
    shop.settle();
    wait_for_state(&mut shop, "active", "");

    shop.client.batch_execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey").unwrap();
    wait_for_state(&mut shop, "stopped", "42P10");
    shop.client.batch_execute("ALTER TABLE orders ADD PRIMARY KEY (id)").unwrap();
    shop.due(4, SECOND);
    shop.settle();
    shop.assert_invariant();
}

#[test]
fn one_policy_in_trouble_does_not_hold_up_another() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "CREATE TABLE c (id int PRIMARY KEY, at timestamptz, s text DEFAULT 'pending');
             CREATE TABLE a (LIKE c INCLUDING ALL);
             CREATE FUNCTION f(k int) RETURNS void LANGUAGE sql AS 'SELECT';
             SELECT expiry.create_policy(t, 'at', $$s = 'pending'$$, 'f') FROM (VALUES ('a'::regclass), ('c')) v(t);
             DROP TABLE a; ALTER TABLE c DROP COLUMN at",
        )
        .unwrap();
    let pid: i32 = wait_until("a worker", 10 * SECOND, || {
        shop.client
            .query_opt(
                "SELECT pid FROM expiry.workers WHERE database = current_database() AND pid IS NOT NULL",
                &[],
            )
            .unwrap()
            .map(|row| row.get(0))
    });
    wait_for_value(
        &mut shop.client,
        "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM expiry.status",
        "c stopped, orders active".to_owned(),
    );
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.policy", 2_i64);
    shop.due(1, SECOND);
    shop.settle();
    shop.assert_invariant();
    wait_for_value(
        &mut shop.client,
        "SELECT pid FROM expiry.workers WHERE database = current_database()",
        pid,
    );
}

#[test]
fn paused_and_resumed() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.due(1, SECOND);
    wait_for_state(&mut shop, "paused", "");
    shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();
    shop.settle();
    shop.client.batch_execute("SELECT expiry.pause()").unwrap();
    wait_for_state(&mut shop, "paused", "");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', paused => false)").unwrap();
    shop.due(2, SECOND);
    shop.settle();
    shop.assert_invariant();
}

#[test]
fn altered_parameters_change_and_others_stay() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", timeout => '1 h', channel => 'one', batch_size => 5");
    shop.client
        .batch_execute("SELECT expiry.alter_policy('orders', channel => 'two', max_attempts => 3)")
        .unwrap();
    let row = shop
        .client
        .query_one(
            "SELECT concat_ws(' ', timeout, channel, batch_size, max_attempts, deadline, cancel_function) FROM expiry.policy",
            &[],
        )
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "01:00:00 two 5 3 pay_by public.cancel_order(bigint)");
    let mut listener = shop.db.listen("two");
    shop.due(1, 3601 * SECOND);
    listener.next(10 * SECOND);
    shop.due(2, SECOND);
    let row = shop.client.query_one("SELECT count(*) FROM expiry.preview('orders')", &[]).unwrap();
    assert_eq!(row.get::<_, i64>(0), 0, "not before its timeout");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', timeout => '0')").unwrap();
    listener.next(10 * SECOND);
    shop.assert_invariant();
}

#[test]
fn preview_shows_and_touches_nothing() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.due(1, 2 * SECOND);
    shop.due(2, 60 * SECOND);
    shop.order(3, 60 * SECOND);
    shop.client.batch_execute("BEGIN READ ONLY").unwrap();
    let rows = shop
        .client
        .query(
            "SELECT v.key->>'id', v.deadline = o.pay_by, v.overdue BETWEEN '0 s' AND '120 s'
             FROM expiry.preview('orders') v JOIN orders o ON o.id::text = v.key->>'id' ORDER BY v.deadline",
            &[],
        )
        .unwrap();
    shop.client.batch_execute("COMMIT").unwrap();
    let rows: Vec<(String, bool, bool)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(rows, [("2".to_owned(), true, true), ("1".to_owned(), true, true)]);
    let limited: i64 = shop.value("SELECT count(*) FROM expiry.preview('orders', 1)");
    assert_eq!((limited, shop.status(1)), (1, "pending".to_owned()));
}

#[test]
fn status_answers_while_the_table_is_locked() {
    let mut shop = Shop::new();
    shop.order(1, 60 * SECOND);
    wait_for_state(&mut shop, "active", "");
    wait_for_value(
        &mut shop.client,
        "SELECT backlog || ' ' || (next_deadline IS NOT NULL)::text FROM expiry.status",
        "0 true".to_owned(),
    );
    let mut locker = shop.db.connect();
    locker.batch_execute("BEGIN; LOCK TABLE orders").unwrap();
    shop.client.batch_execute("SET lock_timeout = '100ms'").unwrap();
    let row = shop.client.query_one("SELECT backlog IS NULL, index_state FROM expiry.status", &[]).unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, &str>(1)), (true, "valid"));
}

#[test]
fn lateness_is_summed_up() {
    let mut shop = Shop::new();
    shop.order(1, SECOND);
    shop.due(2, 100 * SECOND);
    shop.settle();
    wait_for_value(&mut shop.client, "SELECT cancelled FROM expiry.status", 2_i64);
    let row = shop.client.query_one(
        "SELECT lateness_p50_ms < 1000, lateness_p99_ms > 100000 AND lateness_p99_ms <= lateness_max_ms, backlog,
                (SELECT sum(count)::bigint FROM expiry.lateness), (SELECT max(bar) FROM expiry.lateness)
         FROM expiry.status", &[]).unwrap();
    assert!(row.get::<_, bool>(0) && row.get::<_, bool>(1));
    assert_eq!((row.get::<_, &str>(2), row.get::<_, i64>(3)), ("0", 2));
    assert_eq!(row.get::<_, &str>(4), "#".repeat(40));
}

#[test]
fn restored_policies_wait_to_be_resumed() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy(", name => 'the \"policy\"'");
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    shop.fill(1..=50, "now() - interval '1 day'");
    let dump = shop.db.name.clone() + ".dump";
    let path = pg_expiry_tests::temporary_directory().join(dump);
    let ran = cluster.program("pg_dump").arg("-Fc").arg("-f").arg(&path).arg(&shop.db.name).status().unwrap();
    assert!(ran.success());
    let copy = cluster.create_database();
    let ran = cluster.program("pg_restore").args(["-e", "-d", &copy.name]).arg(&path).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    std::fs::remove_file(&path).unwrap();
    let clone = cluster.create_database();
    let mut admin = cluster.connect("postgres");
    admin.batch_execute(&format!("DROP DATABASE {}", clone.name)).unwrap();
    drop(shop.client);
    wait_until("nobody in the template", 10 * SECOND, || {
        admin.batch_execute(&format!("CREATE DATABASE {} TEMPLATE {}", clone.name, shop.db.name))
    });
    for db in [&copy, &clone] {
        let mut client = db.connect();
        wait_for_value(&mut client, "SELECT state FROM expiry.status", "restored".to_owned());
        let error = db_error(client.batch_execute("CALL expiry.run('the \"policy\"')"));
        assert_eq!(error.code().code(), "55000");
        wait_for_value(&mut client, "SELECT count(*) FROM expiry.event", 0_i64);
        client.batch_execute("SELECT expiry.resume()").unwrap();
        wait_for_value(&mut client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 50_i64);
        wait_for_value(&mut client, "SELECT count(*) FROM expiry.event", 50_i64);
    }
}

#[test]
fn upgraded_cluster_finds_everything_by_its_name() {
    let mut shop = Shop::new();
    wait_for_state(&mut shop, "active", "");
    // What pg_upgrade leaves: the same database number, another cluster, other functions' numbers.
    shop.client
        .batch_execute(
            "UPDATE expiry.binding SET system_identifier = 1, function = 'now()'::regprocedure, predicate_tree = '{NONSENSE}';
             SELECT expiry.wake()",
        )
        .unwrap();
    shop.due(1, SECOND);
    shop.settle();
    let mut other = shop.db.connect();
    other.batch_execute("SELECT expiry.create_policy('stock', 'x', 'true', 'f')").unwrap_err();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    let is_bound = "SELECT system_identifier <> 1 AND function = 'cancel_order(bigint)'::regprocedure FROM expiry.binding";
    wait_for_value(&mut shop.client, is_bound, true);
    shop.due(2, SECOND);
    shop.settle();
    shop.assert_invariant();
}

#[test]
fn table_that_becomes_a_partition_leaves_its_rows_to_the_parents_policy() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE bills (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz) PARTITION BY RANGE (id);
             CREATE TABLE bills_1 PARTITION OF bills FOR VALUES FROM (0) TO (10);
             CREATE TABLE bills_2 (LIKE bills INCLUDING ALL);
             CREATE FUNCTION close_bill(id int) RETURNS void LANGUAGE sql AS
                 $$ UPDATE bills b SET status = 'closed' WHERE b.id = $1 $$;
             SELECT expiry.create_policy(t, 'pay_by', $$status = 'pending'$$, 'close_bill(int)')
                 FROM (VALUES ('bills'::regclass), ('bills_2')) v(t);
             ALTER TABLE bills ATTACH PARTITION bills_2 FOR VALUES FROM (10) TO (20);
             INSERT INTO bills VALUES (1, 'pending', now()), (11, 'pending', now())",
        )
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM bills WHERE status = 'closed'", 2_i64);
    wait_for_value(
        &mut shop.client,
        "SELECT state || ' ' || substring(reason FROM 'SQLSTATE .....') FROM expiry.status WHERE name = 'bills_2'",
        "stopped SQLSTATE 55000".to_owned(),
    );
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.event WHERE policy = 'bills'", 2_i64);
}

#[test]
fn locked_table_holds_up_no_other_policy() {
    let mut shop = Shop::without_policy();
    let name = shop.db.name.clone();
    // A predicate out of the settings is parsed again at each load, for which the relation is opened.
    shop.client
        .batch_execute(&format!(
            "ALTER DATABASE {name} SET pg_expiry.predicate = $$status = 'pending'$$;
             CREATE TABLE bills (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz);
             CREATE FUNCTION close_bill(k int) RETURNS void LANGUAGE sql AS $$ UPDATE bills SET status = 'closed' WHERE id = k $$"
        ))
        .unwrap();
    let mut client = shop.db.connect();
    client
        .batch_execute("SELECT expiry.create_policy('bills', 'pay_by', cancel_function => 'close_bill')")
        .unwrap();
    shop.create_policy("");
    client.batch_execute("INSERT INTO bills VALUES (1, 'pending', now())").unwrap();
    wait_for_value(&mut client, "SELECT status FROM bills", "closed".to_owned());
    client.batch_execute("BEGIN; LOCK TABLE bills; INSERT INTO bills VALUES (2, 'pending', now())").unwrap();
    // Makes the worker load its policies again.
    shop.client.batch_execute("ALTER TABLE orders SET (fillfactor = 90)").unwrap();
    shop.due(1, SECOND);
    shop.settle();
    client.batch_execute("COMMIT").unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM bills WHERE status = 'closed'", 2_i64);
}
