//! Code of the low role in other people's sessions: whoever looks at a policy, changes it, or runs it by hand,
//! and the worker itself, must not find that anything was left behind for them to run.

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::wait_for_value;

use super::den::Den;

/// A predicate that leaves a deferred trigger, and settings, to whoever reads it: when it is planned (the part
/// without a column) and for each row.
const BAIT: &str = "
CREATE TABLE den.bait (x int);
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON den.bait DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('deferred');
CREATE FUNCTION den.lay_bait() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM den.spy('bait'), set_config('search_path', 'den', false), set_config('work_mem', '77MB', false);
    INSERT INTO den.bait VALUES (1);
END $$;
CREATE FUNCTION den.is_open(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
    BEGIN
        PERFORM den.lay_bait();
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    BEGIN
        PERFORM set_config('search_path', 'den', false), set_config('work_mem', '77MB', false);
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    RETURN $1 = 'pending';
END $$;
";

const PREDICATE: &str = "den.is_open('pending') AND den.is_open(status)";

fn settings_of(client: &mut Client) -> String {
    let sql = "SELECT current_setting('search_path') || ' ' || current_setting('work_mem')";
    client.query_one(sql, &[]).unwrap().get(0)
}

/// What others do with a policy; each in a transaction of its own, at whose commit deferred triggers run.
const LOOKS: &str = "
SELECT * FROM expiry.status;
SELECT * FROM expiry.preview('den');
SELECT expiry.alter_policy('den', predicate => $$den.is_open('pending') AND den.is_open(status)$$);
SELECT expiry.alter_policy('den', cancel_function => 'den.cancel_order');
SELECT expiry.pause('den');
SELECT expiry.resume('den');
SELECT expiry.resume();
SELECT expiry.retry('den');
SELECT expiry.drop_policy('den');
SELECT expiry.create_policy('den.orders', 'pay_by', $$den.is_open('pending') AND den.is_open(status)$$,
    'den.cancel_order(bigint)', name => 'den');
";

#[test]
fn predicate_leaves_nothing_to_a_superuser() {
    let mut den = Den::new();
    den.low_does(BAIT);
    den.low_creates_policy(PREDICATE, "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    den.low_does("INSERT INTO den.orders (id, pay_by) VALUES (2, now() + interval '1 h')");
    let before = settings_of(&mut den.superuser);
    for look in LOOKS.split_terminator(";").map(str::trim).filter(|look| !look.is_empty()) {
        den.superuser_does(look);
        assert_eq!(settings_of(&mut den.superuser), before, "{look}");
        den.assert_only_low_was_seen(&[]);
    }
    den.assert_only_low_was_seen(&["bait", "deferred"]);
    den.assert_victim_is_well();
}

#[test]
fn predicate_leaves_nothing_to_whoever_monitors() {
    let mut den = Den::new();
    den.low_does(BAIT);
    den.low_creates_policy(PREDICATE, "");
    den.low_does("INSERT INTO den.orders (id, pay_by) VALUES (1, now() + interval '1 h')");
    wait_for_value(
        &mut den.superuser,
        "SELECT index_state FROM expiry.status WHERE name = 'den'",
        "valid".to_owned(),
    );
    let victim = den.victim_name.clone();
    den.superuser_does(&format!("GRANT pg_monitor TO {victim}"));
    let before = settings_of(&mut den.victim);
    let seen = "SELECT count(*) FROM expiry.status WHERE name = 'den' AND next_deadline IS NOT NULL";
    wait_for_value(&mut den.victim, seen, 1_i64);
    assert_eq!(settings_of(&mut den.victim), before);
    den.assert_only_low_was_seen(&[]);
    den.superuser_does(&format!("REVOKE pg_monitor FROM {victim}"));
    den.assert_victim_is_well();
}

/// The worker reads a predicate anew when the type of a column in it has changed, or a function in it was dropped
/// and made again.
#[test]
fn predicate_leaves_nothing_to_the_worker() {
    let mut den = Den::new();
    den.low_does(BAIT);
    den.low_creates_policy(PREDICATE, "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    for (id, change) in [
        (2, "ALTER TABLE den.orders ALTER status TYPE varchar(20)"),
        (3, "ALTER TABLE den.orders RENAME status TO state; ALTER TABLE den.orders RENAME state TO status"),
        (4, "DROP FUNCTION den.is_open CASCADE"),
    ] {
        den.low_does(change);
        if change.starts_with("DROP") {
            den.low_does(&BAIT[BAIT.find("CREATE FUNCTION den.is_open").unwrap()..]);
        }
        den.low_does(&format!("INSERT INTO den.orders (id) VALUES ({id}); SELECT expiry.wake()"));
        den.wait_for_cancelled(id);
        den.assert_only_low_was_seen(&[]);
    }
    den.assert_only_low_was_seen(&["bait", "deferred"]);
    den.assert_victim_is_well();
}

/// What a cancel function leaves in a session that is not its owner's: temporary objects that hide the tables and
/// types of the one who called, prepared statements, cursors, settings.
const LITTER: &str = "
CREATE OR REPLACE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS $$ DECLARE
    left_open CURSOR FOR SELECT 1;
BEGIN
    EXECUTE 'CREATE TEMP VIEW prices AS SELECT den.spy(''view'') AS price';
    EXECUTE 'CREATE TEMP TABLE later (x int)';
    EXECUTE 'CREATE DOMAIN pg_temp.bool AS pg_catalog.bool CHECK (den.spy_quietly(''domain''))';
    EXECUTE 'CREATE FUNCTION pg_temp.f() RETURNS boolean LANGUAGE sql AS $f$ SELECT den.spy(''function'') $f$';
    EXECUTE 'PREPARE left_over AS SELECT den.spy(''prepared'')';
    IF EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE name = 'own') THEN
        EXECUTE 'DEALLOCATE own';
        EXECUTE 'PREPARE own AS SELECT den.spy(''prepared'')';
    END IF;
    PERFORM set_config('search_path', 'den', false), set_config('work_mem', '77MB', false), den.spy('cancel');
    UPDATE den.orders SET status = 'cancelled' WHERE id = k;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON den.orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('deferred');
";

#[test]
fn run_by_hand_leaves_nothing_to_a_superuser() {
    let mut den = Den::new();
    den.low_does(LITTER);
    den.superuser_does("SELECT expiry.stop_workers()");
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.superuser_does(
        "CREATE TABLE public.prices AS SELECT true AS price;
         CREATE TEMP TABLE mine AS SELECT 1 AS x; PREPARE own AS SELECT 1; PREPARE kept AS SELECT 2",
    );
    let before = settings_of(&mut den.superuser);
    den.superuser_does("CALL expiry.run()");
    assert_eq!(settings_of(&mut den.superuser), before);
    den.superuser_does("SELECT price, true::bool FROM prices; SELECT x FROM mine; EXECUTE kept");
    let left = "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name IN ('left_over', 'own'))
                + (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relname <> 'mine')
                + (SELECT count(*) FROM pg_proc WHERE pronamespace = pg_my_temp_schema())
                + (SELECT count(*) FROM pg_type WHERE typnamespace = pg_my_temp_schema() AND typname NOT IN ('mine', '_mine'))";
    assert_eq!(den.superuser.query_one(left, &[]).unwrap().get::<_, i64>(0), 0);
    den.assert_only_low_was_seen(&["cancel", "deferred"]);
}

/// Run by its owner, it is his session, and what he leaves there is his.
#[test]
fn run_by_hand_leaves_an_owners_session_alone() {
    let mut den = Den::new();
    den.low_does(LITTER);
    den.superuser_does("SELECT expiry.stop_workers()");
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.low_does("CALL expiry.run()");
    den.low_does("SELECT price FROM prices; SELECT x FROM later; EXECUTE left_over");
    den.assert_only_low_was_seen(&["cancel", "deferred", "view", "prepared"]);
}
