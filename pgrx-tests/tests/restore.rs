//! Policies that come out of a dump, with a cloned database, or with an upgraded cluster.

use std::time::Duration;

use crate::status::wait_for_state;
use pg_expiry_tests::{Cluster, Shop, db_error, temporary_directory, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn restored_policies_wait_to_be_resumed() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy(", name => 'the \"policy\"'");
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    shop.fill(1..=50, "now() - interval '1 day'");
    let dump = shop.db.name.clone() + ".dump";
    let path = temporary_directory().join(dump);
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
