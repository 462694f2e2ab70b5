//! What belongs to others: their tables, policies, events, failures, consumers, and our own tables.

use std::time::Duration;

use pg_expiry_tests::postgres::Row;
use pg_expiry_tests::postgres::types::Type;
use pg_expiry_tests::{db_error, wait_for_value};

use super::den::{Den, SECRET};

/// Names with a meaning in SQL, or that look like the end of something.
const INJECTIONS: [&str; 10] = [
    "'); SELECT den.spy('injected'); --",
    "'); DROP TABLE vault.secret; --",
    "\"; SELECT den.spy('injected'); --",
    "\"; DROP TABLE vault.secret; --",
    "' || den.spy('injected') || '",
    "\\'; SELECT den.spy('injected'); --",
    "$1); SELECT den.spy('injected'); --",
    "$$; SELECT den.spy('injected'); $$",
    "%s%I%L%n",
    "/*",
];

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Whether all columns are NULL, or void.
fn says_nothing(row: &Row) -> bool {
    (0..row.len()).all(|column| {
        row.columns()[column].type_() == &Type::VOID
            || matches!(row.try_get::<_, Option<bool>>(column), Ok(None))
    })
}

/// R52: our tables and views are written through the functions only, whatever the statement.
#[test]
fn tables_of_ours_are_nobodys_to_write() {
    let mut den = Den::new();
    let low = den.low_name.clone();
    let sql = "SELECT format('%I.%I', 'expiry', relname), relkind::text FROM pg_class
               WHERE relnamespace = 'expiry'::regnamespace AND relkind IN ('r', 'v', 'S')";
    let relations = den.superuser.query(sql, &[]).unwrap();
    assert!(relations.len() >= 11, "{}", relations.len());
    for relation in relations {
        let (name, kind): (String, String) = (relation.get(0), relation.get(1));
        let mut attempts = vec![
            format!("ALTER TABLE {name} OWNER TO {low}"),
            format!("DROP TABLE {name}"),
            format!("COMMENT ON TABLE {name} IS 'mine'"),
        ];
        if kind == "S" {
            attempts.extend([format!("SELECT nextval('{name}')"), format!("SELECT setval('{name}', 1)")]);
        } else {
            attempts.extend([
                format!("INSERT INTO {name} DEFAULT VALUES"),
                format!("DELETE FROM {name}"),
                format!("TRUNCATE {name}"),
                format!("DO 'BEGIN LOCK TABLE {name} IN ROW EXCLUSIVE MODE; END'"),
                format!("CREATE TRIGGER t BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('ours')"),
                format!("CREATE RULE r AS ON INSERT TO {name} DO ALSO SELECT den.spy('ours')"),
                format!("CREATE RULE \"_RETURN\" AS ON SELECT TO {name} DO INSTEAD SELECT 1"),
                format!("ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"),
                format!("CREATE POLICY p ON {name} USING (den.spy('ours'))"),
                format!("CREATE INDEX ON {name} (den.spy_quietly('ours'))"),
                format!("CREATE TABLE den.child () INHERITS ({name})"),
                format!("CREATE STATISTICS den.s ON name, policy FROM {name}"),
                format!("CREATE PUBLICATION p FOR TABLE {name}"),
            ]);
        }
        for attempt in attempts {
            let code = db_error(den.low.simple_query(&attempt)).code().code().to_owned();
            // 55000: a view that cannot be written at all; 42809: not this kind of relation.
            assert!(["42501", "55000", "42809"].contains(&code.as_str()), "{attempt}: {code}");
        }
    }
    let columns = "name, relation, owner, deadline, predicate, cancel_function";
    for sql in [
        format!(
            "INSERT INTO expiry.policy ({columns}) VALUES ('x', 'vault.orders', 'postgres', 'pay_by', 'true', 'den.cancel_order(bigint)')"
        ),
        "UPDATE expiry.policy SET cancel_function = 'den.cancel_order(bigint)'".into(),
        "UPDATE expiry.policy SET owner = 'postgres'".into(),
        "CREATE TABLE den.child (policy text REFERENCES expiry.policy)".into(),
        "CREATE FUNCTION expiry.f() RETURNS void LANGUAGE sql AS 'SELECT'".into(),
        "CREATE OR REPLACE FUNCTION expiry.wake() RETURNS void LANGUAGE sql AS 'SELECT'".into(),
        "CREATE TABLE expiry.t ()".into(),
        "CREATE FUNCTION den.f() RETURNS void LANGUAGE c AS 'pg_expiry', 'expiry_wake_wrapper'".into(),
        "ALTER EXTENSION pg_expiry ADD TABLE den.seen".into(),
        "ALTER EXTENSION pg_expiry DROP TABLE expiry.policy".into(),
        "ALTER EXTENSION pg_expiry UPDATE".into(),
        "DROP EXTENSION pg_expiry".into(),
        "DROP SCHEMA expiry CASCADE".into(),
        "ALTER SCHEMA expiry RENAME TO x".into(),
    ] {
        den.low_is_refused(&sql, "42501");
    }
    den.assert_only_low_was_seen(&[]);
    den.assert_victim_is_well();
}

/// None of our functions runs with other rights than the caller's, and what they say in SQL has one meaning.
#[test]
fn functions_of_ours_are_made_safely() {
    let mut den = Den::new();
    let sql = "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
               WHERE p.pronamespace = 'expiry'::regnamespace
                 AND (p.prosecdef OR (l.lanname <> 'c' AND NOT coalesce(p.proconfig, '{}') @> '{search_path=pg_catalog\\, pg_temp}')
                      OR p.proowner <> 10)";
    let unsafe_ones: Vec<String> =
        den.superuser.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(unsafe_ones.is_empty(), "{unsafe_ones:?}");
    // A view runs with its owner's rights unless it says otherwise; then it must hide rows from conditions too.
    let sql =
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'expiry'::regnamespace AND relkind = 'v'
                 AND NOT coalesce(reloptions, '{}') && '{security_invoker=true,security_barrier=true}'";
    let leaky: Vec<String> = den.superuser.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(leaky.is_empty(), "{leaky:?}");
    let sql =
        "SELECT relname::text FROM pg_class c WHERE relnamespace = 'expiry'::regnamespace AND relkind = 'r'
                 AND NOT relrowsecurity AND has_table_privilege('public', c.oid, 'SELECT')";
    let open: Vec<String> = den.superuser.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(open.is_empty(), "{open:?}");
}

/// Every function of ours whose first argument is a name, with the names of the victim's policy and consumer.
#[test]
fn functions_with_the_names_of_others() {
    let mut den = Den::new();
    let sql = "SELECT p.proname::text, p.prokind = 'p', p.pronargs - p.pronargdefaults, p.pronargs,
                      ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY a(t, n) ORDER BY n)
               FROM pg_proc p WHERE p.pronamespace = 'expiry'::regnamespace AND p.proargtypes[0] = 'text'::regtype";
    let functions = den.superuser.query(sql, &[]).unwrap();
    assert!(functions.len() >= 14, "{}", functions.len());
    for function in functions {
        let (name, is_procedure, needed, types): (String, bool, i16, Vec<String>) =
            (function.get(0), function.get(1), function.get(2), function.get(4));
        for victims in ["vault", "vault swordfish"] {
            let mut arguments = vec![quoted(victims)];
            for given in types.iter().take(usize::try_from(needed).unwrap()).skip(1) {
                arguments.push(match given.as_str() {
                    "jsonb" => "'{\"id\": \"13\"}'".to_owned(),
                    "bigint" | "integer" => "1".to_owned(),
                    other => format!("NULL::{other}"),
                });
            }
            let call = format!("expiry.{name}({})", arguments.join(", "));
            let sql = if is_procedure { format!("CALL {call}") } else { format!("SELECT * FROM {call}") };
            let is_a_new_consumer = name == "subscribe";
            match den.low.query(&sql, &[]) {
                Err(error) => {
                    let code = error.code().unwrap().code();
                    assert!(["42501", "42704", "42710"].contains(&code), "{sql}: {error:?}");
                }
                // A function that returns nothing, or is not asked with a NULL, says nothing.
                Ok(rows) => assert!(is_a_new_consumer || rows.iter().all(says_nothing), "{sql}"),
            }
        }
    }
    for sql in [
        "SELECT expiry.subscribe('mine', 'vault', 0)",
        "SELECT expiry.alter_policy('vault', cancel_function => 'den.cancel_order(bigint)')",
        "SELECT expiry.alter_policy('vault', channel => 'den')",
        "SELECT expiry.preview('vault', 1)",
        "SELECT expiry.retry('vault', '{\"id\": 13}')",
        "SELECT expiry.stop_workers()",
        "SELECT expiry.start_workers()",
    ] {
        den.low_is_refused(sql, "42501");
    }
    den.low_is_refused("SELECT * FROM expiry.events_after(0, name => 'vault')", "42704");
    // Those that take all one may act for, take nothing of the victim's.
    for sql in
        ["SELECT expiry.pause()", "SELECT expiry.resume()", "CALL expiry.run()", "SELECT expiry.wake()"]
    {
        den.low_does(sql);
    }
    let quarantined = "SELECT count(*) FROM expiry.failure WHERE policy = 'vault' AND attempts = 1 AND next_attempt_at IS NULL";
    assert_eq!(den.victim.query_one(quarantined, &[]).unwrap().get::<_, i64>(0), 1);
    let place = "SELECT fetched + acked FROM expiry.consumers WHERE name = 'vault swordfish'";
    assert_eq!(den.victim.query_one(place, &[]).unwrap().get::<_, i64>(0), 0);
    den.assert_victim_is_well();
}

/// R52: a policy on what is somebody else's, or leads to it.
#[test]
fn policy_on_what_is_not_ones_own() {
    let mut den = Den::new();
    let (low, victim) = (den.low_name.clone(), den.victim_name.clone());
    den.superuser_does(&format!(
        "CREATE TABLE vault.parted (id bigint, status text, pay_by timestamptz, PRIMARY KEY (id)) PARTITION BY RANGE (id);
         CREATE TABLE vault.part PARTITION OF vault.parted FOR VALUES FROM (0) TO (10);
         CREATE TABLE vault.parent (id bigint PRIMARY KEY, status text, pay_by timestamptz);
         ALTER TABLE vault.parted OWNER TO {victim}; ALTER TABLE vault.part OWNER TO {victim}; ALTER TABLE vault.parent OWNER TO {victim};
         CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER there FOREIGN DATA WRAPPER elsewhere;
         GRANT USAGE ON FOREIGN SERVER there TO {low};
         GRANT ALL ON vault.parent TO {low}"
    ));
    den.low_does(
        "CREATE VIEW den.window AS SELECT * FROM vault.orders;
         CREATE FOREIGN TABLE den.far (id bigint, status text, pay_by timestamptz) SERVER there;
         CREATE TABLE den.parted (id bigint, status text, pay_by timestamptz, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    );
    for (relation, code) in [
        ("vault.orders", "42501"),
        ("vault.parted", "42501"),
        ("vault.part", "42501"),
        // All rights on its rows, and still not its owner.
        ("vault.parent", "42501"),
        ("den.window", "42809"),
        ("den.far", "42809"),
        ("expiry.event", "42809"),
        ("expiry.policy", "42809"),
        ("pg_catalog.pg_authid", "42809"),
        ("pg_catalog.pg_class", "42809"),
    ] {
        for function in ["den.cancel_order(bigint)", "vault.cancel_order(bigint)"] {
            let sql = format!(
                "SELECT expiry.create_policy('{relation}', 'pay_by', 'true', '{function}', name => 'mine')"
            );
            den.low_is_refused(&sql, code);
        }
    }
    for sql in [
        "ALTER TABLE den.parted ATTACH PARTITION vault.parent FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE den.child () INHERITS (vault.parent)",
        "ALTER TABLE vault.parent INHERIT den.orders",
        "CREATE TABLE vault.another ()",
    ] {
        den.low_is_refused(sql, "42501");
    }
    // There is no saying for whom: it is the table's owner always.
    let for_another = "SELECT expiry.create_policy('den.orders', 'pay_by', 'true', 'den.cancel_order', owner => 'postgres')";
    den.low_is_refused(for_another, "42883");
    // A function that it may not execute, one that is the victim's to run as the low role, and one that does
    // harm only to whoever has the right to.
    den.superuser_does("REVOKE EXECUTE ON FUNCTION vault.cancel_order(bigint) FROM PUBLIC");
    let on_own = |function: &str| {
        format!(
            "SELECT expiry.create_policy('den.orders', 'pay_by', $$status = 'pending'$$, '{function}', name => 'den', max_attempts => 1)"
        )
    };
    den.low_is_refused(&on_own("vault.cancel_order(bigint)"), "42501");
    den.superuser_does(&format!("GRANT EXECUTE ON FUNCTION vault.cancel_order(bigint) TO {victim}, {low}"));
    den.low_does(&on_own("vault.cancel_order(bigint)"));
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    let failure = "SELECT sqlstate FROM expiry.failure WHERE policy = 'den'";
    wait_for_value(&mut den.superuser, failure, "42501".to_owned());
    den.assert_victim_is_well();
}

/// What one may read of ours shows nothing of others, whatever condition one puts on it.
#[test]
fn conditions_that_leak() {
    let mut den = Den::new();
    den.low_creates_policy("status = 'pending'", "");
    den.low_does(
        "INSERT INTO den.orders (id) VALUES (1); SELECT expiry.subscribe('lows', after => 0);
         CREATE TABLE den.leaked (what text);
         CREATE FUNCTION den.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
             $$ BEGIN INSERT INTO den.leaked VALUES ($1); RETURN true; END $$",
    );
    den.wait_for_cancelled(1);
    wait_for_value(&mut den.low, "SELECT cancelled FROM expiry.status", 1_i64);
    let sql = "SELECT c.relname::text, string_agg(format('den.leak(x.%I::text)', a.attname), ' AND ')
               FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               WHERE c.relnamespace = 'expiry'::regnamespace AND c.relkind IN ('r', 'v')
                 AND has_table_privilege('public', c.oid, 'SELECT') GROUP BY 1";
    let relations = den.superuser.query(sql, &[]).unwrap();
    assert!(relations.len() >= 9, "{}", relations.len());
    let victim = den.victim_name.clone();
    for relation in relations {
        let (name, leaks): (String, String) = (relation.get(0), relation.get(1));
        for sql in [
            format!("SELECT FROM expiry.{name} x WHERE {leaks}"),
            format!("SELECT FROM expiry.{name} x WHERE den.leak(x::text)"),
            format!("SELECT FROM (SELECT * FROM expiry.{name} OFFSET 0) x WHERE den.leak(x::text)"),
            format!(
                "SELECT FROM expiry.{name} x JOIN expiry.{name} y ON den.leak(x::text) AND den.leak(y::text)"
            ),
        ] {
            den.low_does(&sql);
        }
        let seen = "SELECT what FROM den.leaked WHERE what LIKE '%vault%' OR strpos(what, $1) > 0 OR strpos(what, $2) > 0 LIMIT 1";
        let leaked = den.superuser.query(seen, &[&SECRET, &victim]).unwrap();
        let leaked: Vec<String> = leaked.iter().map(|row| row.get(0)).collect();
        assert!(leaked.is_empty(), "expiry.{name}: {leaked:?}");
    }
    let leaked = "SELECT count(*) > 20 FROM den.leaked";
    assert!(den.superuser.query_one(leaked, &[]).unwrap().get::<_, bool>(0));
    den.low_is_refused("SELECT * FROM expiry.binding", "42501");
    den.assert_victim_is_well();
}

/// Whoever takes the name of a policy that is gone gets nothing of what it has recorded.
#[test]
fn name_that_was_anothers() {
    let mut den = Den::new();
    for goes in ["SELECT expiry.drop_policy('vault')", "DROP TABLE vault.orders"] {
        den.victim.batch_execute(goes).unwrap();
        den.low_does(
            "SELECT expiry.create_policy('den.orders', 'pay_by', $$status = 'pending'$$, 'den.cancel_order(bigint)', name => 'vault')",
        );
        for relation in ["failure", "event", "progress", "lateness", "events_after(0, name => 'vault')"] {
            let sql = format!("SELECT count(*) FROM expiry.{relation} x WHERE x::text LIKE '%{SECRET}%'");
            assert_eq!(den.low.query_one(&sql, &[]).unwrap().get::<_, i64>(0), 0, "{goes}: {sql}");
        }
        let shown = "SELECT last_error FROM expiry.status WHERE name = 'vault'";
        assert_eq!(den.low.query_one(shown, &[]).unwrap().get::<_, Option<String>>(0), None);
        let kept = "SELECT count(*) >= 2 FROM expiry.event WHERE policy = 'vault'";
        assert!(den.victim.query_one(kept, &[]).unwrap().get::<_, bool>(0), "{goes}");
        // Nor does the victim's consumer hear of what the other does under this name.
        den.low_does("INSERT INTO den.orders (id) VALUES ((SELECT count(*) + 1 FROM den.orders))");
        wait_for_value(&mut den.superuser, "SELECT count(*) FROM den.orders WHERE status = 'pending'", 0_i64);
        let heard = "SELECT count(*) FROM expiry.fetch_events('vault swordfish') WHERE key ? 'id' AND data IS NULL AND kind = 'cancelled'";
        assert_eq!(den.victim.query_one(heard, &[]).unwrap().get::<_, i64>(0), 0, "{goes}");
        den.low_does("SELECT expiry.drop_policy('vault')");
        den.victim
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS vault.orders (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz DEFAULT now());
                 SELECT expiry.create_policy('vault.orders', 'pay_by', $$status = 'pending'$$, 'vault.cancel_order(bigint)', name => 'vault',
                     max_attempts => 1, channel => 'vault swordfish')",
            )
            .unwrap();
    }
}

/// R54: text that would be SQL if we ever put it into a statement unquoted.
#[test]
fn text_that_would_be_sql() {
    let mut den = Den::new();
    for text in INJECTIONS {
        let value = quoted(text);
        for argument in ["deadline", "predicate", "cancel_function", "time_zone", "epoch", "notify"] {
            let known = [
                ("deadline", "'pay_by'"),
                ("predicate", "'true'"),
                ("cancel_function", "'den.cancel_order(bigint)'"),
            ];
            let mut given: Vec<String> = known
                .iter()
                .filter(|(name, _)| *name != argument)
                .map(|(name, value)| format!("{name} => {value}"))
                .collect();
            given.push(format!("{argument} => {value}"));
            let sql = format!("SELECT expiry.create_policy('den.orders', name => 'x', {})", given.join(", "));
            let code = db_error(den.low.simple_query(&sql)).code().code().to_owned();
            assert!(code.starts_with("42") || code.starts_with("22"), "{sql}: {code}");
        }
        for sql in [
            format!("SELECT * FROM expiry.preview({value})"),
            format!("SELECT * FROM expiry.events_after(0, name => {value})"),
            format!("SELECT * FROM expiry.fetch_events({value})"),
            format!("SELECT expiry.ack_events({value}, 1)"),
            format!("SELECT expiry.subscribe('x', {value})"),
            format!("SELECT expiry.retry({value})"),
            format!("CALL expiry.run({value})"),
        ] {
            den.low_is_refused(&sql, "42704");
        }
        // Where any text is right: names of all kinds, channels, keys, and what the function returns.
        let table = format!("den.{}", identifier(text));
        den.low_does(&format!(
            "CREATE TABLE {table} ({table_key} text PRIMARY KEY, {status} text DEFAULT 'pending', {pay_by} timestamptz DEFAULT now());
             CREATE FUNCTION den.{function}(k text) RETURNS jsonb LANGUAGE sql AS $body$
                 UPDATE {table} SET {status} = 'cancelled' WHERE {table_key} = k; SELECT to_jsonb(k) $body$;
             INSERT INTO {table} VALUES ({value});
             SELECT expiry.create_policy({table_text}, {pay_by_text}, {predicate}, {function_text}, name => {name}, channel => {value});
             SELECT expiry.subscribe({value}, {name}, 0)",
            table_key = identifier(&format!("k{text}")),
            status = identifier(&format!("s{text}")),
            pay_by = identifier(&format!("p{text}")),
            function = identifier(&format!("f{text}")),
            table_text = quoted(&table),
            pay_by_text = quoted(&identifier(&format!("p{text}"))),
            predicate = quoted(&format!("{} = 'pending'", identifier(&format!("s{text}")))),
            function_text = quoted(&format!("den.{}(text)", identifier(&format!("f{text}")))),
            name = value,
        ));
        let cancelled = format!(
            "SELECT count(*) FROM expiry.event WHERE policy = {value} AND data = to_jsonb({value}::text)"
        );
        wait_for_value(&mut den.low, &cancelled, 1_i64);
        let heard = format!("SELECT count(*) FROM expiry.fetch_events({value})");
        assert_eq!(den.low.query_one(&heard, &[]).unwrap().get::<_, i64>(0), 1, "{text}");
    }
    den.assert_only_low_was_seen(&[]);
    let injected = "SELECT count(*) FROM den.seen WHERE what = 'injected'";
    assert_eq!(den.superuser.query_one(injected, &[]).unwrap().get::<_, i64>(0), 0);
    den.assert_victim_is_well();
}

/// Channels have no owners in PostgreSQL: whoever knows one may listen and notify. Its name is told to nobody
/// else, and what somebody notifies there is no event.
#[test]
fn channel_of_another() {
    let mut den = Den::new();
    for sql in
        ["SELECT channel FROM expiry.policy", "SELECT * FROM expiry.status", "SELECT * FROM expiry.event"]
    {
        assert!(den.low.query(sql, &[]).unwrap().is_empty(), "{sql}");
    }
    den.low_does(
        "SELECT pg_notify('vault swordfish', '{\"v\":1,\"id\":999,\"policy\":\"vault\",\"kind\":\"cancelled\",\"key\":{\"id\":\"7\"}}')",
    );
    let forged = "SELECT count(*) FROM expiry.events_after(0) WHERE id = 999 OR key->>'id' = '7'";
    assert_eq!(den.victim.query_one(forged, &[]).unwrap().get::<_, i64>(0), 0);
    // Without notifications there is nothing to overhear.
    den.victim.batch_execute("SELECT expiry.alter_policy('vault', notify => 'off')").unwrap();
    let mut listener = den.db.listen("vault swordfish");
    den.assert_victim_is_well();
    den.victim.batch_execute("SELECT pg_notify('vault swordfish', 'last')").unwrap();
    assert_eq!(listener.next(Duration::from_secs(10)).payload, "last");
}

/// Processes and databases of others.
#[test]
fn workers_of_others() {
    let mut den = Den::new();
    let (low, database) = (den.low_name.clone(), den.db.name.clone());
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    let sql = "SELECT pid FROM expiry.workers WHERE database = current_database() ORDER BY pid";
    let pids = |den: &mut Den| -> Vec<i32> {
        den.superuser.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let before = pids(&mut den);
    assert_eq!(before.len(), 2);
    assert_eq!(den.low.query(sql, &[]).unwrap().len(), 1, "its own only");
    for pid in &before {
        den.low_is_refused(&format!("SELECT pg_terminate_backend({pid})"), "42501");
        den.low_is_refused(&format!("SELECT pg_cancel_backend({pid})"), "42501");
    }
    den.superuser_does(&format!("ALTER ROLE {low} CREATEDB"));
    for sql in [
        format!("DROP DATABASE {database}"),
        format!("DROP DATABASE {database} WITH (FORCE)"),
        format!("ALTER DATABASE {database} RENAME TO x"),
        format!("ALTER DATABASE {database} SET TABLESPACE pg_default"),
        format!("ALTER DATABASE {database} SET pg_expiry.lookahead = '1 h'"),
        format!("ALTER DATABASE {database} ALLOW_CONNECTIONS false"),
        format!("CREATE DATABASE {database}_x TEMPLATE {database}"),
    ] {
        let mut elsewhere = den.db.endpoint.connect_as("postgres", &low);
        let code = db_error(elsewhere.simple_query(&sql)).code().code().to_owned();
        assert_eq!(code, "42501", "{sql}");
    }
    den.superuser_does(&format!("ALTER ROLE {low} NOCREATEDB"));
    assert_eq!(pids(&mut den), before);
    den.assert_victim_is_well();
}
