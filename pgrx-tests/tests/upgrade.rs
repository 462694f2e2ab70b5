//! pg_upgrade from an older major version: policies go on by themselves.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::restore::original::{Original, assert_went_on, succeed};
use crate::status::wait_for_state;
use pg_expiry_tests::{Cluster, Endpoint, Installation, Mode, Shop, eventually, scratch_folder};

const SECOND: Duration = Duration::from_secs(1);

fn pg_upgrade(old: &Cluster, new: &Cluster, folder: &Path) -> Command {
    let mut command = new.program("pg_upgrade");
    command.env_remove("PGHOST").env_remove("PGPORT").current_dir(folder);
    command.args(["-U", Endpoint::SUPERUSER, "-b"]).arg(Installation::old().bin());
    command.arg("-B").arg(Installation::get().bin());
    command.arg("-d").arg(old.data()).arg("-D").arg(new.data());
    command
}

/// What initdb does by default has changed in version 18.
fn enable_checksums(cluster: &Cluster) {
    let control = succeed(cluster.program("pg_controldata").arg(cluster.data()));
    if control.lines().any(|line| line.starts_with("Data page checksum version:") && line.ends_with(" 0")) {
        let mut enable = cluster.program("pg_checksums");
        let output = enable.args(["--enable", "--no-sync", "-D"]).arg(cluster.data()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Minor versions of 2026 mark columns of rows' types in a way that pg_upgrade takes over and an older minor
/// version of the new server refuses, whatever the tables are; the two at hand may be such a pair.
fn forget_marks_of_columns(cluster: &Cluster, databases: &[&str]) {
    for database in databases {
        let forget = "SET allow_system_table_mods = on;
                      UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%}'";
        cluster.connect(database).batch_execute(forget).unwrap();
    }
}

/// R56. `make test` runs it when there is a server of an older version, and tells that one in
/// PG_EXPIRY_OLD_SERVER; with PG=18 that is usually 15.
#[test]
#[ignore = "there is no server of an older version to upgrade from"]
fn cluster_of_an_older_version_goes_on() {
    let old = Cluster::builder().installation(Installation::old()).stopped();
    let new = Cluster::builder().stopped();
    [&old, &new].into_iter().for_each(enable_checksums);
    old.start_again();
    let original = Original::in_database(old.create_database()).left_alone(&old);
    let name = original.shop.db.name.clone();
    let mut admin = old.connect("postgres");
    // Paused and restored policies stay as they are.
    admin.batch_execute(&format!("CREATE DATABASE clone TEMPLATE {name}")).unwrap();
    admin.batch_execute(&format!("CREATE DATABASE paused TEMPLATE {name}")).unwrap();
    old.connect("paused").batch_execute("SELECT expiry.resume(); SELECT expiry.pause()").unwrap();

    let folder = scratch_folder("upgrade");
    // Beside the running server and its workers.
    let mut check = pg_upgrade(&old, &new, &folder);
    succeed(
        check.args(["--check", "-s"]).arg(old.endpoint().host()).args(["-p", &Endpoint::PORT.to_string()]),
    );
    drop((admin, original.shop.client));
    forget_marks_of_columns(&old, &[&name, "clone", "paused"]);
    old.stop(Mode::Fast);
    succeed(pg_upgrade(&old, &new, &folder).arg("--check"));
    succeed(&mut pg_upgrade(&old, &new, &folder));

    new.start_again();
    let db = pg_expiry_tests::Db { name, endpoint: new.endpoint().clone() };
    let mut client = db.connect();
    let moved = Original { shop: Shop { client: db.connect(), db }, last_id: original.last_id };
    assert_went_on(&mut client, &moved);
    // None of them in the servers that pg_upgrade has started.
    let early = format!(
        "SELECT count(*) FROM expiry.event WHERE id > {} AND occurred_at < pg_postmaster_start_time()",
        original.last_id
    );
    assert_eq!(client.query_one(&early, &[]).unwrap().get::<_, i64>(0), 0);
    for state in ["clone", "paused"] {
        let mut client = new.connect(state);
        let expected = if state == "clone" { "restored" } else { state }.to_owned();
        eventually(&mut client, "SELECT string_agg(DISTINCT state, ' ') FROM expiry.status", expected);
        eventually(&mut client, "SELECT count(*) FROM orders WHERE status = 'pending'", 48_i64);
    }
    assert!(!new.log().contains("pg_expiry: policy"), "{}", new.log());
}

/// What pg_upgrade leaves, on every version.
#[test]
fn upgraded_cluster_finds_everything_by_its_name() {
    let mut shop = Shop::new();
    wait_for_state(&mut shop, "active", "");
    // What pg_upgrade leaves: the same database number, another cluster, other functions' numbers.
    shop.client
        .batch_execute(
            "UPDATE expiry.binding SET system_identifier = 1, server_version = 14, function = 'now()'::regprocedure, predicate_tree = '{NONSENSE}';
             SELECT expiry.wake()",
        )
        .unwrap();
    shop.due(1, SECOND);
    shop.settle();
    let mut other = shop.db.connect();
    other.batch_execute("SELECT expiry.create_policy('stock', 'x', 'true', 'f')").unwrap_err();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    let is_bound = "SELECT system_identifier <> 1 AND function = 'cancel_order(bigint)'::regprocedure FROM expiry.binding";
    eventually(&mut shop.client, is_bound, true);
    shop.due(2, SECOND);
    shop.settle();
    shop.assert_invariant();
}
