//! The extension's own versions: each can be updated to this one, and a library leaves alone what another
//! version has made.
//!
//! Besides those that are released (sql/versions), two are made up here: an older one, this one without a
//! few of its objects, and a newer one, in which the policies' table is another.

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use crate::processes::common::{complaints, is_scout_ended, worker};
use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::postgres::error::DbError;
use pg_expiry_tests::{
    Cluster, Db, Installation, Shop, Signal, db_error, eventually, launcher_pid, signal, wait_until,
    worker_pids,
};

const SECOND: Duration = Duration::from_secs(1);
const THIS: &str = env!("CARGO_PKG_VERSION");
const OLDER: &str = "0.0.1";
const NEWER: &str = "999.0.0";

/// What the made-up older version lacks.
const LACKS: &str = "
DROP FUNCTION retry(text, jsonb);
ALTER TABLE binding DROP COLUMN build_error;
COMMENT ON TABLE binding IS NULL;
REVOKE SELECT ON SEQUENCE event_id_seq FROM pg_database_owner;";

/// What the made-up newer version has otherwise: nothing that this library does would work.
const NEWER_IS: &str =
    "ALTER TABLE policy RENAME relation TO target; ALTER TABLE event RENAME data TO details;";
const NEWER_IS_NOT: &str =
    "ALTER TABLE event RENAME details TO data; ALTER TABLE policy RENAME target TO relation;";

/// Makes both known to the server.
fn make_up_versions() {
    static MADE: LazyLock<()> = LazyLock::new(|| {
        let folder = Installation::get().extension_folder();
        let script = |versions: &str| folder.join(format!("pg_expiry--{versions}.sql"));
        let full = fs::read_to_string(script(THIS)).expect("the script of this version");
        let part = |from: &str| -> &str {
            let start = full.find(from).unwrap_or_else(|| panic!("{from} in the script"));
            let end = full[start..].find(";\n").expect("its end");
            &full[start..=start + end]
        };
        let parts = [
            part("CREATE FUNCTION retry("),
            part("COMMENT ON FUNCTION retry("),
            "ALTER TABLE binding ADD build_error text;",
            part("COMMENT ON COLUMN binding.build_error"),
            part("COMMENT ON TABLE binding"),
            part("GRANT SELECT ON SEQUENCE event_id_seq"),
        ];
        let scripts = [
            (OLDER.to_owned(), full.clone() + LACKS),
            (format!("{OLDER}--{THIS}"), parts.join("\n")),
            (format!("{THIS}--{NEWER}"), NEWER_IS.to_owned()),
            (format!("{NEWER}--{THIS}"), NEWER_IS_NOT.to_owned()),
        ];
        for (versions, text) in scripts {
            fs::write(script(&versions), text).expect("a script of the extension");
        }
    });
    LazyLock::force(&MADE);
}

/// Every object of the extension, with all that an upgrade script could forget.
fn schema(client: &mut Client) -> Vec<String> {
    const SCHEMA: &str = r#"
WITH member AS (SELECT classid, objid FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
                AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_expiry'))
SELECT concat_ws(' | ', pg_describe_object(classid, objid, 0), obj_description(objid, classid::regclass::name),
                 (SELECT concat_ws(' ', privtype, initprivs) FROM pg_init_privs i WHERE (i.classoid, i.objoid, i.objsubid) = (classid, objid, 0)))
FROM member
UNION ALL
SELECT concat_ws(' | ', c.oid::regclass, c.relkind, c.relacl, c.reloptions, c.relrowsecurity, c.relowner::regrole,
                 CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
FROM pg_class c WHERE c.relnamespace = 'expiry'::regnamespace
UNION ALL
SELECT concat_ws(' | ', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attacl,
                 col_description(a.attrelid, a.attnum), pg_get_expr(d.adbin, d.adrelid))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE c.relnamespace = 'expiry'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT concat_ws(' | ', pg_get_functiondef(oid), proacl, proowner::regrole) FROM pg_proc WHERE pronamespace = 'expiry'::regnamespace
UNION ALL
SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE c.relnamespace = 'expiry'::regnamespace
UNION ALL
SELECT concat_ws(' | ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = 'expiry'::regnamespace
UNION ALL
SELECT concat_ws(' | ', tablename, policyname, permissive, roles, cmd, qual, with_check) FROM pg_policies WHERE schemaname = 'expiry'
UNION ALL
SELECT concat_ws(' | ', c.oid::regclass, e.condition) FROM (SELECT unnest(extconfig) AS oid, unnest(extcondition) AS condition
    FROM pg_extension WHERE extname = 'pg_expiry') e JOIN pg_class c USING (oid)
UNION ALL
SELECT concat_ws(' | ', extversion, extnamespace::regnamespace) FROM pg_extension WHERE extname = 'pg_expiry'
ORDER BY 1"#;
    let rows = client.query(SCHEMA, &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn every_version_becomes_this_one() {
    make_up_versions();
    let (present, none) = (Db::with_extension(), Db::new());
    let fresh = schema(&mut present.connect());
    assert!(fresh.len() > 200, "{}", fresh.len());
    let mut client = none.connect();
    let versions = "SELECT version FROM pg_available_extension_versions WHERE name = 'pg_expiry' AND version NOT IN ($1, $2)";
    let versions: Vec<String> =
        client.query(versions, &[&THIS, &NEWER]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(versions.contains(&OLDER.to_owned()));
    for version in versions {
        let db = Db::new();
        let mut client = db.connect();
        client.batch_execute(&format!("CREATE EXTENSION pg_expiry VERSION '{version}'")).unwrap();
        assert_ne!(schema(&mut client), fresh);
        client.batch_execute("ALTER EXTENSION pg_expiry UPDATE").unwrap();
        let updated = schema(&mut client);
        for object in &updated {
            assert!(fresh.contains(object), "{version}: updated has {object}");
        }
        for object in &fresh {
            assert!(updated.contains(object), "{version}: updated lacks {object}");
        }
    }
}

#[track_caller]
fn assert_refused(error: &DbError, hint: &str) {
    assert_eq!(error.code().code(), "55000", "{error:?}");
    assert!(error.message().contains("version"), "{error:?}");
    assert!(error.hint().is_some_and(|said| said.contains(hint)), "{error:?}");
}

/// What each of these does would be wrong, or fail in the middle.
const CALLS: [&str; 17] = [
    "SELECT expiry.create_policy('orders', 'pay_by', 'true', 'cancel_order(bigint)', name => 'another')",
    "SELECT expiry.alter_policy('orders', batch_size => 1)",
    "SELECT expiry.drop_policy('orders')",
    "SELECT expiry.pause()",
    "SELECT expiry.resume()",
    "SELECT expiry.preview('orders')",
    "SELECT expiry.probe('orders')",
    "SELECT expiry.why_not('orders', '1')",
    "SELECT expiry.reset_stats()",
    "SELECT expiry.restored('orders', '1')",
    "CALL expiry.run()",
    "CALL expiry.run('orders')",
    "CALL expiry.wait_for_events(0, '1 s')",
    "SELECT expiry.subscribe('mailer')",
    "SELECT expiry.fetch_events('mailer')",
    "SELECT expiry.ack_events('mailer', 0)",
    "SELECT expiry.unsubscribe('mailer')",
];

/// These ask for nothing that another version may have changed, or are called from within those above.
const HARMLESS: [&str; 11] = [
    "announce",
    "wake",
    "stop_workers",
    "start_workers",
    "list_workers",
    "events_after",
    "refuse_future_event",
    "is_bound_here",
    "is_waiting",
    "consumer_position",
    "consumer_fetched",
];

/// No function is forgotten in the lists above.
#[test]
fn every_function_refuses_another_version_or_is_harmless() {
    let db = Db::with_extension();
    let sql = "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'expiry'::regnamespace";
    let functions: Vec<String> = db.connect().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let refuses = |name: &str| CALLS.iter().any(|call| call.contains(&format!(" expiry.{name}(")));
    let unknown: Vec<&String> = functions
        .iter()
        .filter(|name| !refuses(name) && !HARMLESS.contains(&name.as_str()) && *name != "retry")
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Waits until no worker is in the database.
fn wait_for_nobody(client: &mut Client) {
    wait_until("the worker to leave", 30 * SECOND, || match worker_pids(client)[..] {
        [] => Ok(()),
        ref pids => Err(pids.to_vec()),
    });
}

/// Has the launcher look at every database anew, and waits until that is done.
fn look_at_all_databases(cluster: &Cluster, client: &mut Client) {
    let before = launcher_pid(client).unwrap();
    signal(before, Signal::TERM);
    wait_until("the launcher to come back", 30 * SECOND, || {
        launcher_pid(client).is_some_and(|pid| pid != before)
    });
    let mut other = Shop::in_database(cluster.create_database());
    other.db.create_extension();
    other.create_policy("");
    other.due(1, SECOND);
    other.settle();
    let scouts = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_expiry scout'";
    eventually(client, scouts, 0_i64);
}

/// The SQL objects are newer than the library that the server has loaded, in the middle of its work: as
/// when a new version was installed and the server not restarted yet. And back, without a restart.
#[test]
fn newer_version_is_left_alone() {
    make_up_versions();
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.client.batch_execute("SELECT expiry.subscribe('mailer')").unwrap();
    let pid = worker(&mut shop.client);
    shop.due(1, SECOND);
    shop.settle();

    // What is rolled back has not happened.
    let update = format!("ALTER EXTENSION pg_expiry UPDATE TO '{NEWER}'");
    shop.client.batch_execute(&format!("BEGIN; {update}; ROLLBACK")).unwrap();
    shop.due(2, SECOND);
    shop.settle();
    assert_eq!(worker_pids(&mut shop.client), [pid]);

    let log = cluster.log().len();
    shop.fill(11..=2000, "now() + id * interval '1 ms'");
    wait_until("a part of the orders to be cancelled", 30 * SECOND, || {
        shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'cancelled'") > 100
    });
    shop.client.batch_execute(&update).unwrap();
    wait_for_nobody(&mut shop.client);
    shop.fill(2001..=2010, "now()");
    let done: i64 = shop.value("SELECT count(*) FROM expiry.event");
    for call in CALLS {
        assert_refused(&db_error(shop.client.batch_execute(call)), "restart the server");
    }
    // Not in the list: the older version lacks it.
    assert_refused(
        &db_error(shop.client.batch_execute("SELECT expiry.retry('orders')")),
        "restart the server",
    );
    for _ in 0..3 {
        shop.client.batch_execute(&format!("{update}; SELECT expiry.wake()")).unwrap();
        look_at_all_databases(&cluster, &mut shop.client);
    }
    wait_for_nobody(&mut shop.client);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), done);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'cancelled'"), done);
    let said: Vec<String> = complaints(&cluster, log);
    let said: Vec<&String> = said.iter().filter(|line| !is_expected(line)).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("WARNING") && said[0].contains("scout") && said[0].contains(NEWER), "{said:?}");

    shop.client.batch_execute(&format!("ALTER EXTENSION pg_expiry UPDATE TO '{THIS}'")).unwrap();
    shop.wait_for_cancelled(2002);
    shop.assert_invariant();
}

/// R65: an update in the middle of a pass, again and again. A batch that it comes in between is not the
/// rows' fault.
#[test]
fn update_under_load_is_no_rows_failure() {
    const ROUNDS: i64 = 20;
    make_up_versions();
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy(", batch_size => 1");
    worker(&mut shop.client);
    let mut other = shop.db.connect();
    let log = cluster.log().len();
    for round in 0..ROUNDS {
        shop.fill(round * 1000 + 1..=round * 1000 + 1000, "now() + (id % 1000) * interval '1 ms'");
        let done =
            format!("SELECT count(*) FROM orders WHERE id > {} AND status = 'cancelled'", round * 1000);
        wait_until("some orders to be cancelled", 30 * SECOND, || shop.value::<i64>(&done) > 20);
        other.batch_execute(&format!("ALTER EXTENSION pg_expiry UPDATE TO '{NEWER}'")).unwrap();
        wait_for_nobody(&mut shop.client);
        other.batch_execute(&format!("ALTER EXTENSION pg_expiry UPDATE TO '{THIS}'")).unwrap();
    }
    shop.wait_for_cancelled(ROUNDS * 1000);
    shop.assert_invariant();
    eventually(&mut shop.client, "SELECT failed FROM expiry.status", 0_i64);
    let is_bad = |line: &String| !line.contains(NEWER) && !is_scout_ended(line);
    let bad: Vec<String> = complaints(&cluster, log).into_iter().filter(is_bad).collect();
    assert_eq!(bad, [""; 0]);
}

/// Our own calls, which are refused, and who is terminated: the launcher, and who is looking just then.
fn is_expected(line: &str) -> bool {
    line.contains("client backend")
        || line.contains("terminating background worker \"pg_expiry launcher\"")
        || is_scout_ended(line)
}

/// The SQL objects are older than the library, as after the restart, before ALTER EXTENSION ... UPDATE.
#[test]
fn older_version_is_left_alone_until_it_is_updated() {
    make_up_versions();
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.client.batch_execute(&format!("CREATE EXTENSION pg_expiry VERSION '{OLDER}'")).unwrap();
    let said = || cluster.log().matches(&format!("extension pg_expiry has version {OLDER}")).count();
    wait_until("the server to say so", 30 * SECOND, || said() > 0);
    for call in CALLS {
        assert_refused(&db_error(shop.client.batch_execute(call)), "ALTER EXTENSION pg_expiry UPDATE");
    }
    // They read only, or have nothing to do with the tables.
    shop.client
        .batch_execute(
            "SELECT * FROM expiry.events_after(0); SELECT * FROM expiry.workers; SELECT expiry.wake()",
        )
        .unwrap();
    let before = said();
    look_at_all_databases(&cluster, &mut shop.client);
    assert_eq!(said(), before);
    assert!(cluster.log().contains("HINT:  ALTER EXTENSION pg_expiry UPDATE in this database."));

    shop.client.batch_execute("ALTER EXTENSION pg_expiry UPDATE").unwrap();
    shop.create_policy("");
    shop.due(1, SECOND);
    shop.settle();
    shop.client.batch_execute("SELECT expiry.retry('orders')").unwrap();
    shop.assert_invariant();
}

/// Without preload there is no worker to stop; the functions refuse all the same.
#[test]
fn functions_refuse_without_preload() {
    make_up_versions();
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.client.batch_execute(&format!("ALTER EXTENSION pg_expiry UPDATE TO '{NEWER}'")).unwrap();
    assert_refused(&db_error(shop.client.batch_execute("CALL expiry.run()")), "restart the server");
    shop.client.batch_execute(&format!("ALTER EXTENSION pg_expiry UPDATE TO '{THIS}'")).unwrap();
    shop.due(1, SECOND);
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    shop.assert_invariant();
}
