//! CREATE DATABASE ... TEMPLATE: a clone has all that a dump has, and events and bindings besides.

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Db, eventually, wait_until, worker_pids};

use super::original::{Original, SECOND, assert_goes_on, assert_waits, succeed};

#[track_caller]
fn create_database(client: &mut Client, sql: &str) {
    client
        .batch_execute(&format!("CREATE DATABASE {sql}"))
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// R57, R67: from a database that is in use, both ways of copying.
#[test]
fn clone_waits_to_be_resumed() {
    let cluster = Cluster::start();
    let original = Original::in_database(cluster.create_database()).left_alone(&cluster);
    let mut admin = cluster.connect("postgres");
    for strategy in ["wal_log", "file_copy"] {
        create_database(
            &mut admin,
            &format!("{strategy} TEMPLATE {} STRATEGY {strategy}", original.shop.db.name),
        );
        let mut clone = cluster.connect(strategy);
        let events: i64 = clone.query_one("SELECT count(*) FROM expiry.event", &[]).unwrap().get(0);
        assert_waits(&mut clone, &original, events);
        assert_goes_on(&mut clone, &original);
        // Its consumer goes on where the original's was.
        let fetched = "SELECT min(id) FROM expiry.fetch_events('mailer')";
        let first: i64 = clone.query_one(fetched, &[]).unwrap().get(0);
        assert!(first <= original.last_id);
    }
    // A clone of a clone, and the clone under the original's name.
    drop(original.shop.client);
    create_database(&mut admin, "again TEMPLATE wal_log");
    let mut again = cluster.connect("again");
    eventually(
        &mut again,
        "SELECT string_agg(DISTINCT state, ' ') FROM expiry.status",
        "restored".to_owned(),
    );
    drop(again);
    let name = &original.shop.db.name;
    admin.batch_execute(&format!("DROP DATABASE {name}")).unwrap();
    admin.batch_execute(&format!("ALTER DATABASE again RENAME TO {name}")).unwrap();
    let mut renamed = cluster.connect(name);
    eventually(
        &mut renamed,
        "SELECT string_agg(DISTINCT state, ' ') FROM expiry.status",
        "restored".to_owned(),
    );
}

/// R67: a template with policies, as test suites have it; nobody of ours is ever in it.
#[test]
fn template_has_no_worker_and_its_clones_wait() {
    let cluster = Cluster::start();
    let original = Original::in_database(cluster.create_database()).left_alone(&cluster);
    let name = original.shop.db.name.clone();
    let mut admin = cluster.connect("postgres");
    admin.batch_execute(&format!("ALTER DATABASE {name} IS_TEMPLATE true ALLOW_CONNECTIONS false")).unwrap();
    for clone in ["one", "two"] {
        create_database(&mut admin, &format!("{clone} TEMPLATE {name}"));
        let mut client = cluster.connect(clone);
        let events: i64 = client.query_one("SELECT count(*) FROM expiry.event", &[]).unwrap().get(0);
        assert_waits(&mut client, &original, events);
        client.batch_execute("SELECT expiry.pause()").unwrap();
    }
    let inside = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname IN ('{name}', 'template0', 'template1')"
    );
    assert_eq!(admin.query_one(&inside, &[]).unwrap().get::<_, i64>(0), 0);
    // As template it is dropped only when it is none any more.
    admin.batch_execute(&format!("ALTER DATABASE {name} IS_TEMPLATE false")).unwrap();
    admin.batch_execute(&format!("DROP DATABASE {name}")).unwrap();
}

/// R67: with the extension in template1, every new database has it.
#[test]
fn extension_in_template1() {
    let cluster = Cluster::start();
    cluster.connect("template1").batch_execute("CREATE EXTENSION pg_expiry").unwrap();
    let mut admin = cluster.connect("postgres");
    for new in ["one", "two"] {
        create_database(&mut admin, new);
        let mut client = cluster.connect(new);
        client
            .batch_execute(
                "CREATE TABLE coupon (id int PRIMARY KEY, used boolean DEFAULT false, valid_until timestamptz);
                 CREATE FUNCTION void(int) RETURNS void LANGUAGE sql AS 'UPDATE coupon SET used = true WHERE id = $1';
                 SELECT expiry.create_policy('coupon', 'valid_until', 'NOT used', 'void(int)');
                 INSERT INTO coupon VALUES (1, false, now())",
            )
            .unwrap();
        wait_until("the coupon to be void", 30 * SECOND, || {
            client.query_one("SELECT used FROM coupon", &[]).unwrap().get::<_, bool>(0)
        });
    }
    assert_eq!(worker_pids(&mut cluster.connect("template1")), [0; 0]);
    succeed(cluster.program("createdb").args(["-T", "one", "three"]));
    let three = Db { name: "three".into(), endpoint: cluster.endpoint().clone() };
    eventually(&mut three.connect(), "SELECT state FROM expiry.status", "restored".to_owned());
}
