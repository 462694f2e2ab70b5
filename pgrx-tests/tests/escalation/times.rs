//! What changes between a policy's making and a call, or within a call.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::{db_error, launcher_pid, wait_for_value, wait_until};

use super::den::Den;

const SECOND: Duration = Duration::from_secs(1);

/// R52: every way out of an identity that SQL has, from a call, from an exception block in it, and from triggers.
const BREAKOUT: &str = "
CREATE TABLE den.tried (place text, way text, sqlstate text);
CREATE FUNCTION den.break_out(place text) RETURNS void LANGUAGE plpgsql AS $$ DECLARE
    way text;
BEGIN
    FOREACH way IN ARRAY ARRAY[
        'RESET ROLE', 'SET ROLE NONE', 'SET ROLE postgres', 'SET LOCAL ROLE postgres', 'SET ROLE VICTIM',
        'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION DEFAULT', 'SET SESSION AUTHORIZATION postgres',
        'SET LOCAL SESSION AUTHORIZATION postgres',
        'SELECT set_config(''role'', ''postgres'', true)', 'SELECT set_config(''session_authorization'', ''postgres'', false)',
        'DO ''BEGIN SET ROLE postgres; END''', 'SELECT den.as_postgres()', 'ALTER FUNCTION den.spy(text) SET role = postgres',
        'SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE', 'RESET ALL', 'DISCARD ALL',
        'SELECT * FROM vault.orders', 'SELECT * FROM vault.secret', 'UPDATE vault.orders SET status = ''x''',
        'SELECT rolpassword FROM pg_authid', 'ALTER ROLE LOW SUPERUSER', 'CREATE ROLE den_role',
        'COPY den.seen TO PROGRAM ''cat''', 'SELECT pg_read_file(''postgresql.conf'')', 'ALTER SYSTEM SET work_mem = 1',
        'SELECT pg_terminate_backend(pg_backend_pid())', 'SELECT pg_cancel_backend(pg_backend_pid())',
        'SELECT pg_terminate_backend(LAUNCHER_PID)',
        'SET session_replication_role = replica', 'SET deadlock_timeout = 1', 'LOAD ''pg_expiry''',
        'INSERT INTO expiry.event SELECT * FROM expiry.event', 'DELETE FROM expiry.event', 'DELETE FROM expiry.policy',
        'SELECT nextval(''expiry.event_id_seq'')', 'SELECT expiry.stop_workers()',
        'SELECT expiry.pause(''vault'')', 'SELECT expiry.drop_policy(''vault'')', 'CALL expiry.run(''vault'')',
        'SELECT expiry.retry(''vault'')', 'SELECT * FROM expiry.fetch_events(''vault swordfish'')',
        'SELECT expiry.create_policy(''vault.orders'', ''pay_by'', ''true'', ''vault.cancel_order'', name => ''x'')'
    ] LOOP
        BEGIN
            EXECUTE replace(replace(way, 'VICTIM', 'VICTIM_NAME'), 'LOW', current_user);
            INSERT INTO den.tried VALUES (place, way, '00000');
        EXCEPTION WHEN OTHERS THEN
            INSERT INTO den.tried VALUES (place, way, SQLSTATE);
        END;
        PERFORM den.spy(place);
    END LOOP;
END $$;
CREATE FUNCTION den.break_out_trigger() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM den.break_out(TG_ARGV[0]); RETURN NEW; END $$;
CREATE TRIGGER b BEFORE UPDATE ON den.orders FOR EACH ROW EXECUTE FUNCTION den.break_out_trigger('row trigger');
CREATE CONSTRAINT TRIGGER d AFTER UPDATE ON den.orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION den.break_out_trigger('deferred trigger');
CREATE OR REPLACE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN PERFORM den.break_out('cancel function'); UPDATE den.orders SET status = 'cancelled' WHERE id = k; END $$;
";

const PLACES: [&str; 3] = ["cancel function", "row trigger", "deferred trigger"];

/// Ways that PostgreSQL lets everybody go, which lead nowhere.
const HARMLESS: [&str; 2] =
    ["RESET ALL", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"];

fn break_out(den: &mut Den) {
    let victim = den.victim_name.clone();
    let launcher = launcher_pid(&mut den.superuser).unwrap();
    den.low_does(&BREAKOUT.replace("VICTIM_NAME", &victim).replace("LAUNCHER_PID", &launcher.to_string()));
    // What `SET role` in a function's definition does is decided when the function is called.
    den.superuser_does(
        "CREATE FUNCTION den.as_postgres() RETURNS void LANGUAGE sql SET role = postgres AS $$ SELECT den.spy('as postgres') $$",
    );
}

fn assert_nobody_got_out(den: &mut Den) {
    den.assert_only_low_was_seen(&PLACES);
    let sql = "SELECT DISTINCT place, way FROM den.tried WHERE sqlstate = '00000'";
    let passed = den.superuser.query(sql, &[]).unwrap();
    let passed: Vec<(String, String)> = passed.iter().map(|row| (row.get(0), row.get(1))).collect();
    let unexpected: Vec<_> = passed.iter().filter(|(_, way)| !HARMLESS.contains(&way.as_str())).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    let sql = "SELECT count(DISTINCT way) FROM den.tried";
    assert!(den.superuser.query_one(sql, &[]).unwrap().get::<_, i64>(0) > 35);
    den.assert_victim_is_well();
}

/// R52: in the worker.
#[test]
fn cancel_function_cannot_leave_its_identity() {
    let mut den = Den::new();
    break_out(&mut den);
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    assert_nobody_got_out(&mut den);
}

/// R52: in a superuser's session.
#[test]
fn cancel_function_cannot_take_the_identity_of_whoever_runs_it() {
    let mut den = Den::new();
    break_out(&mut den);
    den.superuser_does("SELECT expiry.stop_workers()");
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.superuser_does("CALL expiry.run('den')");
    den.wait_for_cancelled(1);
    den.superuser_does("SELECT expiry.start_workers()");
    assert_nobody_got_out(&mut den);
}

/// Functions and tables change hands and bodies between the policy's making and a call.
#[test]
fn function_and_table_that_change_hands() {
    let mut den = Den::new();
    let victim = den.victim_name.clone();
    for sql in [
        "CREATE OR REPLACE FUNCTION vault.cancel_order(k bigint) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'".into(),
        "DROP FUNCTION vault.cancel_order(bigint)".into(),
        "ALTER FUNCTION vault.cancel_order(bigint) SECURITY DEFINER".into(),
        format!("ALTER FUNCTION den.cancel_order(bigint) OWNER TO {victim}"),
        format!("ALTER TABLE den.orders OWNER TO {victim}"),
        format!("ALTER SCHEMA den OWNER TO {victim}"),
        "ALTER TABLE vault.orders RENAME TO gone".into(),
        "CREATE TRIGGER t BEFORE UPDATE ON vault.orders FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('foreign trigger')".into(),
        "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION den.spy_trigger()".into(),
        "CREATE CAST (text AS timestamptz) WITH INOUT AS IMPLICIT".into(),
    ] {
        let code = db_error(den.low.simple_query(&sql)).code().code().to_owned();
        assert!(["42501", "42P17"].contains(&code.as_str()), "{sql}: {code}");
    }
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    for (id, change) in [
        (2, "ALTER FUNCTION den.cancel_order(bigint) SECURITY DEFINER"),
        (3, "ALTER FUNCTION den.cancel_order(bigint) SET search_path = den, pg_catalog"),
        (4, "CREATE OR REPLACE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN PERFORM den.spy('replaced'); UPDATE den.orders SET status = 'cancelled' WHERE id = k; END $$"),
    ] {
        den.low_does(&format!("{change}; INSERT INTO den.orders (id) VALUES ({id})"));
        den.wait_for_cancelled(id);
    }
    // A function's definition may name any role; it is refused when it is called.
    for (id, setting) in [(5, "role"), (6, "session_authorization")] {
        den.low_does(&format!(
            "ALTER FUNCTION den.cancel_order(bigint) SET {setting} = postgres; INSERT INTO den.orders (id) VALUES ({id})"
        ));
        let failures = format!("SELECT sqlstate FROM expiry.failure WHERE key->>'id' = '{id}'");
        wait_for_value(&mut den.low, &failures, "42501".to_owned());
        den.low_does("ALTER FUNCTION den.cancel_order(bigint) RESET ALL");
    }
    den.assert_only_low_was_seen(&["cancel", "replaced"]);
    den.assert_victim_is_well();
}

/// Who has given a table away makes no policy on it any more: neither while he waits for the table, nor in a
/// transaction that still sees himself as its owner.
#[test]
fn table_that_is_given_away_meanwhile() {
    let mut den = Den::new();
    let (low, victim) = (den.low_name.clone(), den.victim_name.clone());
    let give = |den: &mut Den, to: &str| den.superuser_does(&format!("ALTER TABLE den.orders OWNER TO {to}"));
    den.superuser_does(&format!("GRANT ALL ON SCHEMA den TO {victim}"));
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    let create = "SELECT expiry.create_policy('den.orders', 'pay_by', $$status = 'pending'$$, 'den.cancel_order(bigint)')";
    let alter = "SELECT expiry.alter_policy('orders', predicate => $$den.spy_quietly('altered')$$,
                     cancel_function => 'den.cancel_order(bigint)')";

    // It waits for the table's lock.
    for (statement, has_policy) in [(create, false), (alter, true)] {
        if has_policy {
            den.low_does(
                &create.replace(")", ", paused => true)").replace("(bigint, paused => true)", "(bigint)"),
            );
        }
        let mut other = den.db.connect_as(&low);
        let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        den.superuser_does("BEGIN");
        give(&mut den, &victim);
        let waiting = thread::spawn(move || db_error(other.simple_query(statement)));
        let mut look = den.db.connect();
        let waits = format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pid}");
        wait_until("the low role to wait", 10 * SECOND, || {
            look.query_one(&waits, &[]).unwrap().get::<_, Option<bool>>(0) == Some(true)
        });
        den.superuser_does("COMMIT");
        assert_eq!(waiting.join().unwrap().code().code(), "42501", "{statement}");
        give(&mut den, &low);
        den.superuser_does("SELECT expiry.drop_policy(name) FROM expiry.policy WHERE name = 'orders'");
    }

    // Its snapshot is older.
    for (statement, has_policy) in [(create, false), (alter, true)] {
        if has_policy {
            den.low_does(
                &create.replace(")", ", paused => true)").replace("(bigint, paused => true)", "(bigint)"),
            );
        }
        den.low_does("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class");
        give(&mut den, &victim);
        den.low_is_refused(statement, "42501");
        den.low_does("ROLLBACK");
        give(&mut den, &low);
        den.superuser_does("SELECT expiry.drop_policy(name) FROM expiry.policy WHERE name = 'orders'");
    }
    give(&mut den, &victim);
    den.assert_only_low_was_seen(&[]);
    let count = "SELECT count(*) FROM den.orders WHERE status = 'pending'";
    assert_eq!(den.superuser.query_one(count, &[]).unwrap().get::<_, i64>(0), 1);
}

/// Events of all owners are written in turn; whoever could sleep in his turn would hold up everybody. So
/// nothing of an owner's runs between the events and the commit.
#[test]
fn nobody_sleeps_in_his_turn() {
    let mut den = Den::new();
    den.low_does(
        "CREATE TABLE den.again (times int);
         CREATE FUNCTION den.defer_again() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
             times int := 1;
         BEGIN
             IF TG_TABLE_NAME = 'again' THEN times := NEW.times + 1; END IF;
             IF times > 2 THEN PERFORM pg_sleep(120); END IF;
             SET CONSTRAINTS ALL DEFERRED; INSERT INTO den.again VALUES (times); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER d AFTER UPDATE ON den.orders DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION den.defer_again();
         CREATE CONSTRAINT TRIGGER d AFTER INSERT ON den.again DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION den.defer_again()",
    );
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    // Until the low role's call has been refused, or is asleep where it should not be.
    wait_until("a failure of the low role, or its sleep", 30 * SECOND, || {
        let sql = "SELECT EXISTS (SELECT FROM expiry.failure WHERE policy = 'den') OR EXISTS (
                       SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())";
        den.superuser.query_one(sql, &[]).unwrap().get::<_, bool>(0)
    });
    den.assert_victim_is_well();
    wait_for_value(
        &mut den.superuser,
        "SELECT sqlstate FROM expiry.failure WHERE policy = 'den'",
        "42501".to_owned(),
    );
}

/// A cursor WITH HOLD is read at the commit, which is in everybody's turn too.
#[test]
fn cursor_that_would_be_read_at_the_commit() {
    let mut den = Den::new();
    den.low_does(
        "CREATE OR REPLACE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             EXECUTE 'DECLARE held CURSOR WITH HOLD FOR SELECT den.spy(''held''), pg_sleep(120)';
             UPDATE den.orders SET status = 'cancelled' WHERE id = k; END $$;
         INSERT INTO den.orders (id) VALUES (1)",
    );
    den.low_creates_policy("status = 'pending'", ", max_attempts => 1");
    den.wait_for_cancelled(1);
    den.superuser_does("SELECT expiry.stop_workers()");
    den.low_does("INSERT INTO den.orders (id) VALUES (2)");
    den.low_does("CALL expiry.run('den')");
    let failure = "SELECT sqlstate FROM expiry.failure WHERE policy = 'den' AND key->>'id' = '2'";
    assert_eq!(den.low.query_one(failure, &[]).unwrap().get::<_, String>(0), "0A000");
    let held = "SELECT count(*) FROM pg_cursors WHERE is_holdable";
    assert_eq!(den.low.query_one(held, &[]).unwrap().get::<_, i64>(0), 0);
    // One that was there before is the session's own.
    den.low_does(
        "BEGIN; DECLARE own CURSOR WITH HOLD FOR SELECT 1; COMMIT; INSERT INTO den.orders (id) VALUES (3)",
    );
    den.low_does(
        "CREATE OR REPLACE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN UPDATE den.orders SET status = 'cancelled' WHERE id = k; END $$",
    );
    den.low_does("CALL expiry.run('den')");
    den.wait_for_cancelled(3);
    assert_eq!(den.low.query_one(held, &[]).unwrap().get::<_, i64>(0), 1);
    let seen = "SELECT count(*) FROM den.seen WHERE what = 'held'";
    assert_eq!(den.low.query_one(seen, &[]).unwrap().get::<_, i64>(0), 0);
    den.superuser_does("SELECT expiry.start_workers()");
    den.assert_victim_is_well();
}

/// Nor does anybody hold up the others with an event of his own, in an open transaction or in a call.
#[test]
fn nobody_keeps_his_turn() {
    let mut den = Den::new();
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    den.low_does("BEGIN; SELECT expiry.restored('den', '{\"id\": 1}')");
    den.assert_victim_is_well();
    den.low_does("COMMIT");
    den.low_does(
        "CREATE OR REPLACE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             PERFORM expiry.restored('den', '{\"id\": 1}');
             PERFORM pg_sleep(120) FROM den.orders WHERE id = k AND status = 'pending';
             UPDATE den.orders SET status = 'cancelled' WHERE id = k; END $$;
         INSERT INTO den.orders (id) VALUES (2)",
    );
    wait_until("the low role to sleep", 30 * SECOND, || {
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity
                       WHERE wait_event = 'PgSleep' AND datname = current_database() AND backend_type = 'pg_expiry worker')";
        den.superuser.query_one(sql, &[]).unwrap().get::<_, bool>(0)
    });
    den.assert_victim_is_well();
    let events = "SELECT count(*) FROM expiry.event WHERE policy = 'den' AND kind = 'restored'";
    assert_eq!(den.low.query_one(events, &[]).unwrap().get::<_, i64>(0), 1);
}
