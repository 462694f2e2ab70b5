//! pg_dumpall: a whole cluster as one script.

use std::path::{Path, PathBuf};

use pg_expiry_tests::{Cluster, scratch_path};

use super::original::{Original, assert_goes_on, assert_waits, succeed};

fn dumped_all(cluster: &Cluster, options: &[&str]) -> PathBuf {
    let path = scratch_path("all");
    succeed(cluster.program("pg_dumpall").args(options).arg("-f").arg(&path));
    path
}

/// What the script complains about, besides what every script of pg_dumpall does.
fn complaints(cluster: &Cluster, script: &Path) -> Vec<String> {
    let output =
        cluster.program("psql").args(["-X", "-q", "-d", "postgres", "-f"]).arg(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_usual = |line: &str| {
        line.contains("role \"postgres\" already exists") || line.contains("current user cannot be dropped")
    };
    said.lines().filter(|line| !is_usual(line)).map(str::to_owned).collect()
}

/// R55, R57, R67: into a fresh cluster, and over one that is in use; the library is preloaded, and
/// template1 has the extension.
#[test]
fn into_a_cluster_with_workers() {
    let source = Cluster::start();
    source.connect("template1").batch_execute("CREATE EXTENSION pg_expiry").unwrap();
    let mut original = Original::without_partitions(without_extension(&source));
    let name = original.shop.db.name.clone();
    for sql in [
        "CREATE ROLE landlord NOLOGIN; ALTER TABLE stock OWNER TO landlord; ALTER TABLE orders OWNER TO landlord",
        &format!("ALTER DATABASE {name} SET pg_expiry.lookahead = '500ms'"),
        "CREATE DATABASE closed TEMPLATE template0",
        "ALTER DATABASE closed ALLOW_CONNECTIONS false",
    ] {
        original.shop.client.batch_execute(sql).unwrap();
    }
    let target = Cluster::start();
    assert_eq!(complaints(&target, &dumped_all(&source, &[])), [""; 0]);
    let mut copy = target.connect(&name);
    assert_waits(&mut copy, &original, 0);
    assert_goes_on(&mut copy, &original);
    let owner = "SELECT owner::text FROM expiry.policy WHERE name = 'orders'";
    assert_eq!(copy.query_one(owner, &[]).unwrap().get::<_, String>(0), "landlord");
    drop(copy);

    // All of it is dropped and made again, under the eyes of its workers.
    assert_eq!(complaints(&target, &dumped_all(&source, &["--clean", "--if-exists"])), [""; 0]);
    let mut copy = target.connect(&name);
    assert_waits(&mut copy, &original, 0);
    assert_goes_on(&mut copy, &original);
}

fn without_extension(cluster: &Cluster) -> pg_expiry_tests::Db {
    let db = cluster.create_database();
    db.connect().batch_execute("DROP EXTENSION pg_expiry").unwrap();
    db
}
