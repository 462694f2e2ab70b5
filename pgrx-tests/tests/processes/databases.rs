//! Statements that need a database for themselves find nobody of ours in the way; and there is nobody
//! where nobody should be.

use std::time::Instant;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Shop, db_error, wait_until, worker_pids, workers};

use super::common::{
    SECOND, SOON, complaints, is_ended, is_scout_ended, shop_on, sleep_in_cancel_function, wait_for_index,
    wake_from_cancel_function, worker,
};

/// A shop whose worker is idle, or in the middle of a cancel function, and no session but the worker's.
struct Vacated {
    cluster: Cluster,
    shop: Option<Shop>,
    name: String,
    client: Client,
}

impl Vacated {
    fn new(is_busy: bool) -> Self {
        let cluster = Cluster::start();
        let mut shop = shop_on(&cluster);
        worker(&mut shop.client);
        wait_for_index(&mut shop);
        if is_busy {
            sleep_in_cancel_function(&mut shop);
        }
        let client = cluster.connect("postgres");
        shop.client = cluster.connect("postgres");
        let name = shop.db.name.clone();
        Self { cluster, shop: Some(shop), name, client }
    }

    /// Executes the statement, in which {db} is the database; it must not take long.
    #[track_caller]
    fn execute_at_once(client: &mut Client, sql: &str, name: &str) {
        let sql = sql.replace("{db}", name);
        let start = Instant::now();
        client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert!(start.elapsed() < SOON, "{sql}: {:?}", start.elapsed());
    }

    #[track_caller]
    fn execute(&mut self, sql: &str) {
        Self::execute_at_once(&mut self.client, sql, &self.name);
    }

    /// The worker comes (back) to this database and does its work.
    #[track_caller]
    fn assert_served(&mut self, database: &str) {
        let mut shop = self.shop.take().unwrap();
        shop.client = self.cluster.connect(database);
        worker(&mut shop.client);
        wake_from_cancel_function(&mut shop);
        let id = shop.value("SELECT max(id) + 1 FROM (SELECT id FROM orders UNION ALL SELECT 1) orders");
        shop.due(id, SECOND);
        shop.settle();
        shop.client = self.cluster.connect("postgres");
        self.shop = Some(shop);
    }
}

#[test]
fn rename_tablespace_and_template_go_through() {
    for is_busy in [false, true] {
        let mut vacated = Vacated::new(is_busy);
        vacated.execute("ALTER DATABASE {db} RENAME TO other");
        vacated.assert_served("other");
        vacated.execute("ALTER DATABASE other RENAME TO {db}");
        let name = vacated.name.clone();
        vacated.assert_served(&name);

        vacated.execute("SET allow_in_place_tablespaces = on");
        vacated.execute("CREATE TABLESPACE elsewhere LOCATION ''");
        vacated.execute("ALTER DATABASE {db} SET TABLESPACE elsewhere");
        vacated.assert_served(&name);

        vacated.execute("CREATE DATABASE copy TEMPLATE {db}");
        vacated.assert_served(&name);
        // Nobody has resumed the copy's policy.
        let mut copy = vacated.cluster.connect("copy");
        assert_eq!(worker_pids(&mut copy), [0; 0]);
        copy.batch_execute("SELECT expiry.resume()").unwrap();
        vacated.assert_served("copy");
    }
}

#[test]
fn drop_goes_through() {
    for drop in ["DROP DATABASE {db}", "DROP DATABASE {db} WITH (FORCE)"] {
        for is_busy in [false, true] {
            let mut vacated = Vacated::new(is_busy);
            let log = vacated.cluster.log().len();
            vacated.execute(drop);
            vacated.execute("CREATE DATABASE {db}");
            vacated.execute("DROP DATABASE {db}");
            // One of ours that is in the middle of something is ended; that line is PostgreSQL's.
            let mut complaints = complaints(&vacated.cluster, log);
            complaints.retain(|line| !is_scout_ended(line));
            let is_expected = |line: &String| is_ended(line) && line.contains("\"pg_expiry ");
            assert!(complaints.len() <= 1 && complaints.iter().all(is_expected), "{complaints:?}");
            let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_expiry%'";
            assert_eq!(vacated.client.query_one(ours, &[]).unwrap().get::<_, i64>(0), 1, "the launcher");
        }
    }
}

/// R17 (i, ii).
#[test]
fn unrelated_databases_come_and_go() {
    for is_busy in [false, true] {
        let mut vacated = Vacated::new(is_busy);
        let pid = || worker(&mut vacated.cluster.connect(&vacated.name));
        let before = pid();
        for _ in 0..3 {
            Vacated::execute_at_once(&mut vacated.client, "CREATE DATABASE x", "");
            Vacated::execute_at_once(&mut vacated.client, "DROP DATABASE x", "");
        }
        assert_eq!(pid(), before);
        assert!(!vacated.cluster.log().contains("still waiting for backend"));
    }
}

/// R18, as it was reported: with the workers stopped, and without the extension.
#[test]
fn stopped_or_without_extension_the_database_is_free() {
    let mut vacated = Vacated::new(false);
    let (cluster, name) = (&vacated.cluster, vacated.name.clone());
    let log = cluster.log().len();
    cluster.connect(&name).batch_execute("SELECT expiry.stop_workers()").unwrap();
    vacated.execute("ALTER DATABASE {db} RENAME TO other");
    // It is the same database: its workers are stopped under any name.
    assert_eq!(worker_pids(&mut vacated.cluster.connect("other")), [0; 0]);
    vacated.execute("ALTER DATABASE other RENAME TO {db}");
    vacated.cluster.connect(&name).batch_execute("SELECT expiry.start_workers()").unwrap();
    vacated.assert_served(&name);
    for force in ["", " WITH (FORCE)"] {
        vacated.execute("CREATE DATABASE copy TEMPLATE {db}");
        let mut copy = vacated.cluster.connect("copy");
        copy.batch_execute("SELECT expiry.resume()").unwrap();
        worker(&mut copy);
        copy.batch_execute("DROP EXTENSION pg_expiry").unwrap();
        drop(copy);
        vacated.execute(&format!("DROP DATABASE copy{force}"));
    }
    let complaints = complaints(&vacated.cluster, log);
    let about_it =
        complaints.iter().filter(|line| line.contains("pg_expiry") && line.contains("copy")).count();
    assert!(about_it <= 2, "{complaints:?}");
    vacated.assert_served(&name);
}

/// R67: a clone that is made as soon as the policy is, when scout and builder are just on their way.
#[test]
fn clone_of_a_database_that_has_just_got_a_policy() {
    let cluster = Cluster::start();
    let mut client = cluster.connect("postgres");
    for n in 0..5 {
        let mut shop = Shop::in_database(cluster.create_database());
        shop.fill(1..=20_000, "now() + interval '1 day'");
        shop.db.create_extension();
        shop.create_policy("");
        let name = shop.db.name.clone();
        shop.client = cluster.connect("postgres");
        Vacated::execute_at_once(&mut client, &format!("CREATE DATABASE copy{n} TEMPLATE {name}"), "");
        shop.client = cluster.connect(&name);
        shop.due(0, SECOND);
        shop.settle();
        let mut copy = cluster.connect(&format!("copy{n}"));
        let state: String = copy.query_one("SELECT state FROM expiry.status", &[]).unwrap().get(0);
        assert_eq!((state.as_str(), worker_pids(&mut copy)), ("restored", vec![]));
    }
}

#[test]
fn owner_without_superuser_can_do_it_too() {
    let mut vacated = Vacated::new(true);
    vacated.execute("CREATE ROLE landlord LOGIN CREATEDB; ALTER DATABASE {db} OWNER TO landlord");
    let mut landlord = vacated.cluster.connect_as("postgres", "landlord");
    Vacated::execute_at_once(&mut landlord, "CREATE DATABASE copy TEMPLATE {db}", &vacated.name);
    Vacated::execute_at_once(&mut landlord, "ALTER DATABASE {db} RENAME TO other", &vacated.name);
    Vacated::execute_at_once(&mut landlord, "DROP DATABASE other", "");
}

#[test]
fn who_may_not_touch_the_database_does_not_touch_its_worker() {
    let mut vacated = Vacated::new(false);
    vacated.execute("CREATE ROLE stranger LOGIN CREATEDB");
    let pid = worker(&mut vacated.cluster.connect(&vacated.name));
    let mut stranger = vacated.cluster.connect_as("postgres", "stranger");
    for sql in
        ["DROP DATABASE {db}", "ALTER DATABASE {db} RENAME TO mine", "CREATE DATABASE mine TEMPLATE {db}"]
    {
        let error = db_error(stranger.batch_execute(&sql.replace("{db}", &vacated.name)));
        assert_eq!(error.code().code(), "42501", "{sql}");
    }
    assert_eq!(worker(&mut vacated.cluster.connect(&vacated.name)), pid);
}

#[test]
fn worker_comes_back_when_the_statement_fails() {
    let mut vacated = Vacated::new(false);
    let name = vacated.name.clone();
    let error = db_error(vacated.client.batch_execute(&format!("ALTER DATABASE {name} RENAME TO postgres")));
    assert_eq!(error.code().code(), "42P04");
    vacated.assert_served(&name);
    vacated.execute("BEGIN");
    vacated.execute("ALTER DATABASE {db} RENAME TO other");
    let client = &mut vacated.client;
    wait_until("the worker to be away", SOON, || {
        let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_expiry%'";
        client.query_one(ours, &[]).unwrap().get::<_, i64>(0) == 1
    });
    vacated.execute("ROLLBACK");
    vacated.assert_served(&name);
    for sql in
        ["DROP DATABASE nowhere", "CREATE DATABASE x TEMPLATE nowhere", "ALTER DATABASE nowhere RENAME TO x"]
    {
        assert_eq!(db_error(vacated.client.batch_execute(sql)).code().code(), "3D000", "{sql}");
    }
    let error = db_error(vacated.client.batch_execute("BEGIN; DROP DATABASE postgres"));
    assert_eq!(error.code().code(), "25001");
}

#[test]
fn closed_databases_and_templates_have_no_workers() {
    let mut vacated = Vacated::new(false);
    let name = vacated.name.clone();
    for (close, open) in [
        ("ALTER DATABASE {db} IS_TEMPLATE true", "ALTER DATABASE {db} IS_TEMPLATE false"),
        ("ALTER DATABASE {db} ALLOW_CONNECTIONS false", "ALTER DATABASE {db} ALLOW_CONNECTIONS true"),
    ] {
        let log = vacated.cluster.log().len();
        vacated.execute(close);
        let client = &mut vacated.client;
        wait_until("the worker to leave", SOON, || {
            let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_expiry%'";
            client.query_one(ours, &[]).unwrap().get::<_, i64>(0) == 1
        });
        vacated.execute("CREATE DATABASE copy TEMPLATE {db}");
        vacated.execute("DROP DATABASE copy");
        let mut complaints = complaints(&vacated.cluster, log);
        complaints.retain(|line| !is_scout_ended(line));
        assert_eq!(complaints, [""; 0], "{close}");
        vacated.execute(open);
        vacated.assert_served(&name);
    }
}

#[test]
fn extension_in_template1_is_no_hindrance() {
    let cluster = Cluster::start();
    cluster.connect("template1").batch_execute("CREATE EXTENSION pg_expiry").unwrap();
    let mut shop = Shop::in_database(cluster.create_database());
    assert_eq!(worker_pids(&mut cluster.connect("template1")), [0; 0]);
    shop.create_policy("");
    shop.due(1, SECOND);
    shop.settle();
    assert_eq!(workers(&mut shop.client).len(), 1);
}
