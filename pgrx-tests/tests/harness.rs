//! The harness itself: servers that start, die and come back, and that leave nothing behind.

use std::fs;
use std::time::Duration;

use pg_expiry_tests::{Cluster, Db, Mode, db_error, rss_anon_kb, shared_cluster, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn count_of_databases(cluster: &Cluster) -> i64 {
    let mut client = cluster.connect("postgres");
    client.query_one("SELECT count(*) FROM pg_database", &[]).unwrap().get(0)
}

#[test]
fn private_server_has_the_extension_and_all_of_postgres() {
    let db = Db::with_extension();
    let mut client = db.connect();
    let preloaded = client.query_one("SHOW shared_preload_libraries", &[]).unwrap();
    assert_eq!(preloaded.get::<_, &str>(0), "pg_expiry");
    // Needs a library and a file of stop words, beside those of PL/pgSQL.
    let words = client.query_one("SELECT to_tsvector('english', 'the late orders')::text", &[]).unwrap();
    assert_eq!(words.get::<_, &str>(0), "'late':2 'order':3");
    client.batch_execute("DO $$BEGIN PERFORM 1; END$$").unwrap();
    let zones = "SELECT count(*) > 300 FROM pg_timezone_names WHERE abbrev <> ''";
    assert!(client.query_one(zones, &[]).unwrap().get::<_, bool>(0));
    let library = "SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'";
    let library: String = client.query_one(library, &[]).unwrap().get(0);
    assert!(fs::exists(format!("{library}/pg_expiry.so")).unwrap(), "{library}");
}

#[test]
fn server_comes_back_with_its_data_however_it_ended() {
    let cluster = Cluster::builder().preload(false).start();
    let mut client = cluster.connect("postgres");
    client.batch_execute("CREATE TABLE t AS SELECT 1 AS n").unwrap();
    drop(client);
    let stops: [fn(&Cluster); 4] = [
        |cluster| cluster.stop(Mode::Smart),
        |cluster| cluster.stop(Mode::Fast),
        |cluster| cluster.stop(Mode::Immediate),
        Cluster::kill9_postmaster,
    ];
    for stop in stops {
        stop(&cluster);
        assert_eq!(cluster.processes(), [0; 0]);
        cluster.start_again();
        wait_for_value(&mut cluster.connect("postgres"), "SELECT n FROM t", 1);
    }
    assert!(cluster.log().contains("database system is ready"), "{}", cluster.log());
}

#[test]
fn settings_reach_new_sessions() {
    let cluster = Cluster::builder().setting("work_mem", "5MB").start();
    let show = |name: &str| -> String {
        cluster.connect("postgres").query_one(&format!("SHOW {name}"), &[]).unwrap().get(0)
    };
    assert_eq!(show("work_mem"), "5MB");
    cluster.set("work_mem", "6MB");
    assert_eq!(show("work_mem"), "6MB");
    cluster.reset("work_mem");
    assert_eq!(show("work_mem"), "5MB");
}

#[test]
fn dropped_server_leaves_neither_process_nor_folder() {
    let cluster = Cluster::start();
    let (data, pid) = (cluster.data(), cluster.pid());
    assert!(rss_anon_kb(pid) > 0);
    drop(cluster);
    assert!(!data.exists());
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
}

#[test]
fn dropped_database_is_gone() {
    let cluster = Cluster::start();
    let before = count_of_databases(&cluster);
    let db = cluster.create_database();
    assert_eq!(count_of_databases(&cluster), before + 1);
    drop(db);
    assert_eq!(count_of_databases(&cluster), before);
}

#[test]
fn listener_hears_what_was_committed() {
    let db = Db::new();
    let mut listener = db.listen("order_expired");
    let mut client = db.connect();
    client.batch_execute(r#"NOTIFY order_expired, '{"v": 1}'"#).unwrap();
    assert_eq!(listener.next(10 * SECOND).json["v"], 1);
    client.batch_execute("BEGIN; NOTIFY order_expired; ROLLBACK").unwrap();
    client.batch_execute("NOTIFY order_expired, 'a'; NOTIFY order_expired, 'b'").unwrap();
    let payloads: Vec<String> = listener.drain().into_iter().map(|heard| heard.payload).collect();
    assert_eq!(payloads, ["a", "b"]);
}

#[test]
fn notices_and_errors_are_seen() {
    let db = Db::new();
    let (mut client, notices) = db.connect_with_notices("postgres");
    client.batch_execute("DO $$BEGIN RAISE NOTICE 'n'; RAISE WARNING 'w'; END$$").unwrap();
    assert_eq!(notices.take("NOTICE")[0].message(), "n");
    assert_eq!(notices.take("WARNING").len(), 1);
    let error = db_error(client.batch_execute("SELECT 1/0"));
    assert_eq!(error.code().code(), "22012");
}

#[test]
#[should_panic(expected = "waited 10ms for pigs to fly; last seen: \"0 pigs\"")]
fn waiting_tells_what_it_saw_last() {
    wait_until("pigs to fly", SECOND / 100, || Err::<(), _>("0 pigs"));
}

#[test]
fn shared_server_is_one() {
    assert_eq!(shared_cluster().pid(), shared_cluster().pid());
    assert!(!shared_cluster().processes().is_empty());
}
