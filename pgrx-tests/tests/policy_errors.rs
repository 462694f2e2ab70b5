//! What bad input to `create_policy()` and its like gets: an SQLSTATE, a hint, and nothing stored.

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, db_error, sqlstate};

/// Tables and functions, good and bad, of a role that is no superuser.
struct Yard {
    db: Db,
    owner: String,
    client: Client,
}

const SCHEMA: &str = "
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz,
    ts timestamp, d date, n int, big bigint, f float8, s smallint);
CREATE TABLE other (x int);
CREATE TABLE keyless (id bigint, status text, pay_by timestamptz);
CREATE TABLE parent (id bigint PRIMARY KEY, pay_by timestamptz);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE parted (id bigint PRIMARY KEY, status text, pay_by timestamptz) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE VIEW simple_view AS SELECT * FROM orders;
CREATE VIEW queue_view AS WITH q AS MATERIALIZED (SELECT * FROM orders) SELECT * FROM q;
CREATE MATERIALIZED VIEW mat_view AS SELECT * FROM orders;
CREATE SEQUENCE seq;
CREATE TEMP TABLE temporary (id bigint PRIMARY KEY, pay_by timestamptz);
CREATE FUNCTION cancel_order(k bigint) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION pg_temp.cancel_temporarily(k bigint) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION twofold(k bigint) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION twofold(k bigint[]) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION bad_arguments(a text, b text) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION bad_return(k bigint) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION bad_batch_return(k bigint[]) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION set_returning(k bigint) RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION polymorphic(k anyelement) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION many_keys(VARIADIC k bigint[]) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE PROCEDURE cancel_and_commit(k bigint) LANGUAGE plpgsql AS 'BEGIN COMMIT; END';
CREATE FUNCTION changes_its_mind(t text) RETURNS boolean VOLATILE LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
";

impl Yard {
    fn new() -> Yard {
        let db = Db::with_extension();
        let owner = format!("owner_of_{}", db.name);
        let mut superuser = db.connect();
        superuser
            .batch_execute(&format!(
                "CREATE ROLE {owner} LOGIN; CREATE SCHEMA yard AUTHORIZATION {owner};
                 CREATE FUNCTION yard.not_for_all(k bigint) RETURNS void LANGUAGE sql AS 'SELECT';
                 REVOKE EXECUTE ON FUNCTION yard.not_for_all FROM PUBLIC;
                 CREATE TABLE yard.foreign_owner (id bigint PRIMARY KEY, pay_by timestamptz);
                 CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER there FOREIGN DATA WRAPPER elsewhere;
                 CREATE FOREIGN TABLE yard.far_away (id bigint, pay_by timestamptz) SERVER there;
                 ALTER FOREIGN TABLE yard.far_away OWNER TO {owner}"
            ))
            .unwrap();
        let mut client = db.connect_as(&owner);
        client.batch_execute("SET search_path = yard").unwrap();
        client.batch_execute(SCHEMA).unwrap();
        Yard { db, owner, client }
    }

    /// The call must fail so, with a hint that has `hint` in it.
    #[track_caller]
    fn refuses(&mut self, call: &str, code: &str, hint: &str) {
        let error = db_error(self.client.batch_execute(&format!("SELECT expiry.{call}")));
        assert_eq!(error.code().code(), code, "{call}: {error:?}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{call}: {error:?}");
    }

    fn policies(&mut self) -> i64 {
        let count = "SELECT (SELECT count(*) FROM expiry.policy) + (SELECT count(*) FROM expiry.binding)";
        self.db.connect().query_one(count, &[]).unwrap().get(0)
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let mut superuser = self.db.connect();
            let owner = &self.owner;
            let _ = superuser.batch_execute(&format!("DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}"));
        }
    }
}

/// R32: what holds no rows of its own, or not for long.
#[test]
fn relation_that_cannot_have_a_policy() {
    let mut yard = Yard::new();
    for (relation, code, hint) in [
        ("'nothing'", "42P01", ""),
        ("NULL", "22004", "create_policy('orders')"),
        ("987654321", "42P01", ""),
        ("'simple_view'", "42809", "plain or partitioned"),
        ("'queue_view'", "42809", "plain or partitioned"),
        ("'mat_view'", "42809", "plain or partitioned"),
        ("'far_away'", "42809", "plain or partitioned"),
        ("'seq'", "42809", "plain or partitioned"),
        ("'temporary'", "42809", "plain or partitioned"),
        ("'pg_class'", "42809", "plain or partitioned"),
        ("'expiry.policy'", "42809", "plain or partitioned"),
        ("'parent'", "42809", "each of them"),
        ("'keyless'", "42P10", "primary key"),
        ("'foreign_owner'", "42501", ""),
    ] {
        yard.refuses(&format!("create_policy({relation}, 'pay_by', 'true', 'cancel_order')"), code, hint);
    }
    assert_eq!(yard.policies(), 0);
}

#[test]
fn key_that_does_not_identify_every_row() {
    let mut yard = Yard::new();
    for index in [
        "CREATE UNIQUE INDEX k ON keyless (id)", // nullable
        "ALTER TABLE keyless ALTER id SET NOT NULL, ADD CONSTRAINT k UNIQUE (id) DEFERRABLE",
        "CREATE UNIQUE INDEX k2 ON keyless (id) WHERE status = 'pending'",
        "CREATE UNIQUE INDEX k3 ON keyless ((id + 1))",
        "CREATE INDEX k4 ON keyless (id)",
    ] {
        yard.client.batch_execute(index).unwrap();
        yard.refuses("create_policy('keyless', 'pay_by', 'true', 'cancel_order')", "42P10", "unique index");
        yard.client.batch_execute("ALTER TABLE keyless DROP CONSTRAINT IF EXISTS k").unwrap();
        yard.client.batch_execute("DROP INDEX IF EXISTS k").unwrap();
    }
    let version: i32 =
        yard.client.query_one("SELECT current_setting('server_version_num')::int", &[]).unwrap().get(0);
    if version >= 180_000 {
        let not_checked =
            "ALTER TABLE keyless ALTER id DROP NOT NULL, ADD CONSTRAINT filled NOT NULL id NOT VALID;
                           CREATE UNIQUE INDEX k ON keyless (id)";
        yard.client.batch_execute(not_checked).unwrap();
        yard.refuses("create_policy('keyless', 'pay_by', 'true', 'cancel_order')", "42P10", "unique index");
        yard.client.batch_execute("ALTER TABLE keyless VALIDATE CONSTRAINT filled; DROP INDEX k").unwrap();
    }
    yard.client.batch_execute("CREATE UNIQUE INDEX good ON keyless (id)").unwrap();
    yard.client
        .batch_execute("SELECT expiry.create_policy('keyless', 'pay_by', 'true', 'cancel_order')")
        .unwrap();
}

#[test]
fn parameter_that_nobody_gives() {
    let mut yard = Yard::new();
    for (call, setting) in [
        ("create_policy('orders')", "pg_expiry.deadline"),
        ("create_policy('orders', 'pay_by')", "pg_expiry.predicate"),
        ("create_policy('orders', 'pay_by', 'true')", "pg_expiry.cancel_function"),
        ("create_policy('orders', predicate => 'true', cancel_function => 'cancel_order')", "deadline =>"),
    ] {
        yard.refuses(call, "22004", setting);
    }
    assert_eq!(yard.policies(), 0);
}

#[test]
fn deadline_that_is_none() {
    let mut yard = Yard::new();
    for (deadline, more, code, hint) in [
        ("nothing", "", "42703", ""),
        ("", "", "42703", ""),
        ("pay_by, id", "", "42703", ""),
        ("status", "", "42804", "timestamptz"),
        ("f", "", "42804", "timestamptz"),
        ("s", "", "42804", "timestamptz"),
        ("ts", "", "22023", "time_zone =>"),
        ("d", "", "22023", "time_zone =>"),
        ("n", "", "22023", "epoch =>"),
        ("big", "", "22023", "epoch =>"),
        ("n", ", epoch => 'h'", "22023", "s or ms"),
        ("n", ", epoch => ''", "22023", "s or ms"),
        ("ts", ", time_zone => 'Mars/Olympus'", "22023", "pg_timezone_names"),
        ("ts", ", time_zone => ''", "22023", "pg_timezone_names"),
        ("pay_by", ", time_zone => 'UTC'", "22023", "timestamp and date"),
        ("pay_by", ", epoch => 's'", "22023", "integer and bigint"),
    ] {
        let call = format!("create_policy('orders', '{deadline}', 'true', 'cancel_order'{more})");
        yard.refuses(&call, code, hint);
    }
    assert_eq!(yard.policies(), 0);
}

#[test]
fn value_out_of_range() {
    let mut yard = Yard::new();
    for (argument, code, hint) in [
        ("timeout => NULL", "22004", "pg_expiry.timeout"),
        ("timeout => '-1 s'", "22023", "0 to 1000 years"),
        ("timeout => '-1 microsecond'", "22023", "0 to 1000 years"),
        ("timeout => '1 day -1 hour'", "22023", "no part of it negative"),
        ("timeout => '100000 years'", "22023", "0 to 1000 years"),
        ("channel => ''", "22023", "1 to 63 bytes"),
        ("channel => repeat('x', 64)", "22023", "1 to 63 bytes"),
        ("channel => repeat('ü', 32)", "22023", "1 to 63 bytes"),
        ("notify => 'maybe'", "22023", "row"),
        ("notify => ''", "22023", "row"),
        ("batch_size => 0", "22023", "1 to 100000"),
        ("batch_size => 100001", "22023", "1 to 100000"),
        ("max_attempts => 0", "22023", "1 to 1000"),
        ("max_attempts => -1", "22023", "1 to 1000"),
        ("retry_delay => '0'", "22023", "1 millisecond"),
        ("retry_delay => '-1 s'", "22023", "1 millisecond"),
        ("retry_delay => '2 days'", "22023", "1 day"),
        ("max_rate => -1", "22023", "rows a second"),
        ("remind_before => '{0}'", "22023", "1 second to 366 days"),
        ("remind_before => '{-1 h}'", "22023", "1 second to 366 days"),
        ("remind_before => '{1 h,999 ms}'", "22023", "1 second to 366 days"),
        ("remind_before => '{1 month}'", "22023", "in days, hours and less"),
        ("remind_before => '{367 days}'", "22023", "1 second to 366 days"),
        ("remind_before => '{2147483647 days}'", "22023", "1 second to 366 days"),
        ("remind_before => '{1 h,NULL}'", "22023", "1 second to 366 days"),
        ("remind_before => array_fill(interval '1 h', ARRAY[17])", "22023", "at most 16"),
        ("name => ''", "22023", "1 to 63 bytes"),
        ("name => repeat('n', 64)", "22023", "1 to 63 bytes"),
    ] {
        yard.refuses(
            &format!("create_policy('orders', 'pay_by', 'true', 'cancel_order', {argument})"),
            code,
            hint,
        );
    }
    assert_eq!(yard.policies(), 0);
}

#[test]
fn predicate_that_no_index_could_have() {
    let mut yard = Yard::new();
    for (predicate, code) in [
        ("status = 'pending", "42601"),
        ("", "42601"),
        ("true) OR (true", "42601"),
        ("true; SELECT 1", "42601"),
        ("true; DROP TABLE orders", "42601"),
        ("true -- and more", "works"),
        ("true ORDER BY 1", "42601"),
        ("true AS x", "42601"),
        ("true, true", "42601"),
        ("*", "42601"),
        ("true FROM orders", "42601"),
        ("SELECT true", "42601"),
        ("orders IS NOT NULL", "42P17"),
        ("ctid IS NOT NULL", "42P17"),
        ("pay_by < now()", "42P17"),
        ("changes_its_mind(status)", "42P17"),
        ("EXISTS (SELECT FROM other)", "42P17"),
        ("max(id) > 3", "42P17"),
        ("row_number() OVER () > 3", "42P17"),
        ("generate_series(1, 2) > 3", "42P17"),
        ("other.x = 1", "42P17"),
        ("status = $1", "42P17"),
        ("nothing = 1", "42703"),
        ("nothing(status)", "42883"),
        ("status = 1", "42883"),
        ("status", "42804"),
    ] {
        let call = format!("create_policy('orders', 'pay_by', $p${predicate}$p$, 'cancel_order')");
        if code == "works" {
            yard.client
                .batch_execute(&format!("SELECT expiry.{call}; SELECT expiry.drop_policy('orders')"))
                .unwrap();
        } else {
            yard.refuses(&call, code, "as for a partial index");
        }
    }
    assert_eq!(yard.policies(), 0);
}

#[test]
fn function_that_cannot_be_called() {
    let mut yard = Yard::new();
    let forms = "(bigint) for each row, ";
    for (function, code, hint) in [
        ("nothing", "42883", forms),
        ("nothing(bigint)", "42883", forms),
        ("nothing(biginx)", "42883", forms),
        ("cancel_order(text)", "42883", "cancel_order(bigint[]) for a whole batch"),
        ("cancel_order(bigint", "42883", "cancel_order(yard.orders) for each row"),
        ("cancel order", "42883", forms),
        ("", "42883", forms),
        ("bad_arguments", "42883", forms),
        ("bad_arguments(text, text)", "42883", forms),
        ("polymorphic", "42883", forms),
        ("many_keys", "42883", forms),
        ("bad_return", "42P13", "jsonb"),
        ("bad_batch_return", "42P13", "array of the keys"),
        ("set_returning", "42P13", "jsonb"),
        ("cancel_and_commit(bigint)", "42809", "Make it a function"),
        ("cancel_and_commit", "42809", "Make it a function"),
        ("max(bigint)", "42809", ""),
        ("row_number", "42809", ""),
        ("pg_temp.cancel_temporarily(bigint)", "42809", "another schema"),
        ("twofold", "42725", "argument types"),
        ("not_for_all", "42501", "GRANT EXECUTE ON FUNCTION yard.not_for_all(bigint) TO"),
    ] {
        yard.refuses(&format!("create_policy('orders', 'pay_by', 'true', '{function}')"), code, hint);
    }
    assert_eq!(yard.policies(), 0);
}

#[test]
fn name_that_is_taken() {
    let mut yard = Yard::new();
    let policy = "create_policy('orders', 'pay_by', 'true', 'cancel_order'";
    yard.client.batch_execute(&format!("SELECT expiry.{policy})")).unwrap();
    yard.refuses(&format!("{policy})"), "42710", "another name");
    yard.refuses(&format!("{policy}, name => 'orders')"), "42710", "another name");
    assert_eq!(yard.policies(), 2, "one, and its binding");
}

/// R32: a partition of a table that has a policy, and the other way round.
#[test]
fn rows_that_are_under_another_policy() {
    let mut yard = Yard::new();
    let on = |table: &str| format!("create_policy('{table}', 'pay_by', 'true', 'cancel_order')");
    yard.client.batch_execute(&format!("SELECT expiry.{}", on("parted"))).unwrap();
    yard.refuses(&on("part"), "55000", "all its partitions");
    yard.client.batch_execute("SELECT expiry.drop_policy('parted')").unwrap();
    yard.client.batch_execute(&format!("SELECT expiry.{}", on("part"))).unwrap();
    yard.refuses(&on("parted"), "55000", "Drop that policy first");
}

#[test]
fn policy_that_does_not_exist_or_is_a_strangers() {
    let mut yard = Yard::new();
    yard.client
        .batch_execute("SELECT expiry.create_policy('orders', 'pay_by', 'true', 'cancel_order')")
        .unwrap();
    let before = yard.policies();
    let calls = ["alter_policy(NAME)", "drop_policy(NAME)", "pause(NAME)", "resume(NAME)", "preview(NAME)"];
    let mut stranger = yard.db.connect();
    let role = format!("stranger_of_{}", yard.db.name);
    stranger.batch_execute(&format!("CREATE ROLE {role}; SET ROLE {role}")).unwrap();
    for call in calls {
        yard.refuses(&call.replace("NAME", "'nothing'"), "42704", "expiry.policy");
        let call = format!("SELECT expiry.{}", call.replace("NAME", "'orders'"));
        assert_eq!(sqlstate(&stranger.batch_execute(&call).unwrap_err()), "42501", "{call}");
    }
    for call in ["alter_policy(NULL)", "drop_policy(NULL)", "preview(NULL)"] {
        yard.refuses(call, "22004", "");
    }
    yard.refuses("preview('orders', -1)", "22023", "");
    yard.refuses("alter_policy('orders', timeout => NULL)", "22004", "leave it as it is");
    yard.refuses("alter_policy('orders', predicate => 'nothing')", "42703", "partial index");
    assert_eq!(yard.policies(), before);
    for table in ["policy", "binding", "event", "failure", "progress"] {
        for statement in
            [format!("DELETE FROM expiry.{table}"), format!("INSERT INTO expiry.{table} DEFAULT VALUES")]
        {
            assert_eq!(sqlstate(&stranger.batch_execute(&statement).unwrap_err()), "42501", "{statement}");
        }
    }
    stranger.batch_execute(&format!("RESET ROLE; DROP ROLE {role}")).unwrap();
}
