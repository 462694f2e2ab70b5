//! pg_dump and pg_restore of one database, in all their ways.

use std::path::Path;

use pg_expiry_tests::{Db, Endpoint, eventually, scratch_path, shared_cluster};

use super::original::{Original, assert_goes_on, assert_restored, assert_waits, dumped, succeed};

#[track_caller]
fn restore(db: &Db, options: &[&str], dump: &Path) {
    let said =
        succeed(shared_cluster().program("pg_restore").args(["-e", "-d", &db.name]).args(options).arg(dump));
    assert_eq!(said, "");
}

/// Runs a plain dump; nothing in it may fail.
#[track_caller]
fn run_script(db: &Db, dump: &Path) {
    let mut psql = shared_cluster().program("psql");
    succeed(psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &db.name, "-f"]).arg(dump));
}

/// R55, R57.
#[test]
fn whole_database() {
    let original = Original::in_database(Db::new());
    let cluster = shared_cluster();

    let copy = Db::new();
    restore(&copy, &[], &dumped(cluster, &original.shop.db, &["-Fc"]));
    assert_restored(&copy, &original);

    let copy = Db::new();
    restore(&copy, &["--single-transaction"], &dumped(cluster, &original.shop.db, &["-Ft"]));
    assert_restored(&copy, &original);

    let copy = Db::new();
    run_script(&copy, &dumped(cluster, &original.shop.db, &["-Fp"]));
    assert_restored(&copy, &original);

    let copy = Db::new();
    run_script(&copy, &dumped(cluster, &original.shop.db, &["-Fp", "--inserts", "--quote-all-identifiers"]));
    assert_restored(&copy, &original);

    let copy = Db::new();
    restore(&copy, &["-j", "2"], &dumped(cluster, &original.shop.db, &["-Fd", "-j", "2"]));
    assert_restored(&copy, &original);
}

/// R55: schema, data and indexes apart, by sections and by kinds.
#[test]
fn in_steps() {
    let original = Original::in_database(Db::new());
    let cluster = shared_cluster();
    let dump = dumped(cluster, &original.shop.db, &["-Fc"]);

    let copy = Db::new();
    for section in ["pre-data", "data", "post-data"] {
        restore(&copy, &["--section", section], &dump);
    }
    assert_restored(&copy, &original);

    // R58 (g): rows that no trigger has seen.
    for more in [&["--disable-triggers"][..], &["--disable-triggers", "-j", "2"]] {
        let prepared = Db::new();
        restore(&prepared, &["--schema-only"], &dump);
        restore(&prepared, &[&["--data-only"], more].concat(), &dump);
        assert_restored(&prepared, &original);
    }

    let prepared = Db::new();
    run_script(&prepared, &dumped(cluster, &original.shop.db, &["--schema-only"]));
    run_script(&prepared, &dumped(cluster, &original.shop.db, &["--data-only"]));
    assert_restored(&prepared, &original);
}

/// R55: into a database that has had more events than the dump knows of, which set the sequence back.
#[test]
fn ids_of_events_do_not_come_again() {
    let original = Original::in_database(Db::new());
    let dump = dumped(shared_cluster(), &original.shop.db, &["-Fc"]);
    let copy = Db::new();
    restore(&copy, &["--schema-only"], &dump);
    let mut client = copy.connect();
    client
        .batch_execute(
            "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)');
             INSERT INTO stock VALUES (1, 0);
             INSERT INTO orders (id, pay_by) SELECT id, now() FROM generate_series(1001, 1100) id",
        )
        .unwrap();
    eventually(&mut client, "SELECT count(*) FROM expiry.event", 100_i64);
    client.batch_execute("SELECT expiry.drop_policy('orders'); TRUNCATE orders, stock").unwrap();
    restore(&copy, &["--data-only", "--disable-triggers"], &dump);
    client.batch_execute("SELECT expiry.resume()").unwrap();
    eventually(
        &mut client,
        "SELECT count(*) FROM expiry.event WHERE id > 100 AND kind = 'cancelled'",
        51_i64,
    );
    eventually(&mut client, "SELECT count(*) FROM expiry.failure", 2_i64);
}

/// Over a database that is in use: its policies go, with a worker among them, and come back paused.
#[test]
fn clean_over_a_living_copy() {
    let original = Original::without_partitions(Db::new());
    let cluster = shared_cluster();
    let dump = dumped(cluster, &original.shop.db, &["-Fc"]);
    let copy = Db::new();
    restore(&copy, &[], &dump);
    for options in [&["--clean"][..], &["--clean", "--if-exists"], &["--clean", "-j", "2"]] {
        let mut client = copy.connect();
        client.batch_execute("SELECT expiry.resume()").unwrap();
        eventually(&mut client, "SELECT count(*) FROM expiry.event", 51_i64);
        restore(&copy, options, &dump);
    }
    let mut client = copy.connect();
    assert_waits(&mut client, &original, 0);
    assert_goes_on(&mut client, &original);
    drop(client);

    // A script that makes the database anew as well.
    let script = dumped(cluster, &original.shop.db, &["--clean", "--if-exists", "--create"]);
    let original = original.left_alone(cluster);
    run_script(&Db { name: "postgres".into(), endpoint: cluster.endpoint().clone() }, &script);
    assert_restored(&original.shop.db, &original);
}

/// R55: tables without the extension that has policies on them.
#[test]
fn tables_alone() {
    let original = Original::in_database(Db::new());
    let cluster = shared_cluster();
    let (copy, copy_of_part) = (Db::new(), Db::new());
    let tables = ["-Fc", "-t", "orders", "-t", "stock", "-t", "seat*", "-t", "\"My Shop\".*"];
    copy.connect().batch_execute("CREATE SCHEMA \"My Shop\"").unwrap();
    restore(&copy, &[], &dumped(cluster, &original.shop.db, &tables));
    let whole = dumped(cluster, &original.shop.db, &["-Fc"]);
    restore(&copy_of_part, &["-t", "orders"], &whole);
    for db in [&copy, &copy_of_part] {
        eventually(&mut db.connect(), "SELECT count(*) FROM orders", 51_i64);
        eventually(&mut db.connect(), "SELECT count(*) FROM pg_extension WHERE extname = 'pg_expiry'", 0_i64);
    }
    // With its index; it serves whoever makes a policy there.
    let indexes = "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND indpred IS NOT NULL";
    eventually(&mut copy.connect(), indexes, 1_i64);
}

/// A policy whose table is gone is not dumped as the bare number that is left of it, which would be
/// another table's in the copy.
#[test]
fn policies_without_table_stay_behind() {
    let mut original = Original::in_database(Db::new());
    original.shop.client.batch_execute("DROP TABLE seat CASCADE").unwrap();
    let left = "SELECT count(*) FROM expiry.policy WHERE name = 'seat'";
    assert_eq!(original.shop.value::<i64>(left), 1, "nobody has forgotten it yet");
    let copy = Db::new();
    restore(&copy, &[], &dumped(shared_cluster(), &original.shop.db, &["-Fc"]));
    eventually(&mut copy.connect(), "SELECT count(*) FROM expiry.policy", 2_i64);
    eventually(&mut copy.connect(), left, 0_i64);
}

/// Leaving a table out leaves its policy pointing nowhere: the documented way is to leave the policies out.
#[test]
fn without_a_table() {
    let original = Original::in_database(Db::new());
    let copy = Db::new();
    let options =
        ["-Fc", "-T", "seat*", "--exclude-table-data=expiry.policy", "--exclude-table-data=expiry.failure"];
    let dump = dumped(shared_cluster(), &original.shop.db, &options);
    // The function that takes such a row cannot be without it.
    let list = succeed(shared_cluster().program("pg_restore").arg("-l").arg(&dump));
    let list: String =
        list.lines().filter(|line| !line.contains("release(")).map(|line| format!("{line}\n")).collect();
    let chosen = scratch_path("list");
    std::fs::write(&chosen, list).unwrap();
    restore(&copy, &["-L", chosen.to_str().unwrap()], &dump);
    let mut client = copy.connect();
    eventually(&mut client, "SELECT count(*) FROM expiry.policy", 0_i64);
    client
        .batch_execute("SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)', starts_at => now())")
        .unwrap();
}

/// Who may dump: not superusers only.
#[test]
fn dumped_by_others() {
    let mut original = Original::in_database(Db::new());
    let db = &original.shop.db;
    let (backup, owner) = (format!("backup_{}", db.name), format!("owner_{}", db.name));
    let cluster = shared_cluster();
    original
        .shop
        .client
        .batch_execute(&format!(
            "CREATE ROLE {backup} LOGIN BYPASSRLS IN ROLE pg_read_all_data; CREATE ROLE {owner} LOGIN;
             ALTER DATABASE {} OWNER TO {owner}; GRANT ALL ON ALL TABLES IN SCHEMA public, \"My Shop\" TO {owner};
             GRANT USAGE ON SCHEMA \"My Shop\" TO {owner}",
            db.name
        ))
        .unwrap();
    let path = scratch_path("dump");
    let dump = |user: &str, options: &[&str]| {
        let mut pg_dump = cluster.program("pg_dump");
        pg_dump.env("PGUSER", user).args(["-Fc", "-f"]).arg(&path).args(options).arg(&db.name);
        pg_dump
    };
    succeed(&mut dump(&backup, &[]));
    let copy = Db::new();
    restore(&copy, &["--no-owner", "--no-acl"], &path);
    assert_restored(&copy, &original);

    // Who sees only his own policies says that this is what he wants.
    assert!(!dump(&owner, &[]).output().unwrap().status.success());
    succeed(&mut dump(&owner, &["--enable-row-security"]));
    let copy = Db::new();
    restore(&copy, &["--no-owner", "--no-acl"], &path);
    eventually(&mut copy.connect(), "SELECT count(*) FROM expiry.policy", 0_i64);

    // Also for the next run's sake: roles are the server's.
    let (name, superuser) = (&original.shop.db.name, Endpoint::SUPERUSER);
    let go = format!(
        "ALTER DATABASE {name} OWNER TO {superuser}; DROP OWNED BY {owner}, {backup}; DROP ROLE {owner}, {backup}"
    );
    original.shop.client.batch_execute(&go).unwrap();
}
