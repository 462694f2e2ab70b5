//! Code of the low role in every place where a worker, or our own functions, may come upon it.

use pg_expiry_tests::wait_for_value;

use super::den::Den;

/// R51: what hides names of pg_catalog and ours, in a schema before pg_catalog on the search path and in the
/// temporary one.
const SHADOWS: &str = "
CREATE FUNCTION SCHEMA.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT den.spy('now'); SELECT 'infinity'::timestamptz $$;
CREATE FUNCTION SCHEMA.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT den.spy('clock'); SELECT '-infinity'::timestamptz $$;
CREATE FUNCTION SCHEMA.md5(text) RETURNS text LANGUAGE sql AS $$ SELECT den.spy('md5'); SELECT 'x' $$;
CREATE FUNCTION SCHEMA.max(bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT den.spy('max'); SELECT 1 $$;
CREATE FUNCTION SCHEMA.count() RETURNS bigint LANGUAGE sql AS $$ SELECT den.spy('count'); SELECT 1::bigint $$;
CREATE FUNCTION SCHEMA.nextval(text) RETURNS bigint LANGUAGE sql AS $$ SELECT den.spy('nextval'); SELECT 1::bigint $$;
CREATE FUNCTION SCHEMA.nextval(regclass) RETURNS bigint LANGUAGE sql AS $$ SELECT den.spy('nextval'); SELECT 1::bigint $$;
CREATE FUNCTION SCHEMA.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$ SELECT den.spy('format'); SELECT 'vault.orders' $$;
CREATE FUNCTION SCHEMA.pg_get_userbyid(oid) RETURNS name LANGUAGE sql AS $$ SELECT den.spy('pg_get_userbyid'); SELECT current_user $$;
CREATE FUNCTION SCHEMA.pg_has_role(oid, text) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('pg_has_role') $$;
CREATE FUNCTION SCHEMA.has_table_privilege(oid, oid, text) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('has_table_privilege') $$;
CREATE FUNCTION SCHEMA.is_waiting(jsonb) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('is_waiting') $$;
CREATE FUNCTION SCHEMA.unnest(jsonb[]) RETURNS SETOF jsonb LANGUAGE sql AS $$ SELECT den.spy('unnest'); SELECT '{}'::jsonb $$;
CREATE FUNCTION SCHEMA.jsonb_build_object(VARIADIC text[]) RETURNS jsonb LANGUAGE sql AS $$ SELECT den.spy('jsonb_build_object'); SELECT '{}'::jsonb $$;
CREATE FUNCTION SCHEMA.instants(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('instants') $$;
CREATE FUNCTION SCHEMA.texts(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('texts') $$;
CREATE FUNCTION SCHEMA.oids(oid, oid) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('oids') $$;
CREATE FUNCTION SCHEMA.ids(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT den.spy('ids') $$;
CREATE OPERATOR SCHEMA.< (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = SCHEMA.instants);
CREATE OPERATOR SCHEMA.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = SCHEMA.instants);
CREATE OPERATOR SCHEMA.>= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = SCHEMA.instants);
CREATE OPERATOR SCHEMA.= (LEFTARG = text, RIGHTARG = text, FUNCTION = SCHEMA.texts);
CREATE OPERATOR SCHEMA.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = SCHEMA.oids);
CREATE OPERATOR SCHEMA.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = SCHEMA.ids);
CREATE OPERATOR SCHEMA.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = SCHEMA.ids);
";

/// Every function of ours that runs statements of its own.
const CALLS: &str = "
SELECT expiry.alter_policy('den', retry_delay => '1 h');
SELECT expiry.pause('den'); SELECT expiry.resume('den'); SELECT expiry.pause(); SELECT expiry.resume();
SELECT * FROM expiry.preview('den'); SELECT * FROM expiry.status; SELECT * FROM expiry.lateness;
SELECT * FROM expiry.workers; SELECT * FROM expiry.consumers; SELECT * FROM expiry.event; SELECT * FROM expiry.failure;
SELECT expiry.retry('den'); SELECT expiry.wake(); SELECT * FROM expiry.events_after(0, name => 'den');
SELECT expiry.subscribe('lows', 'den', 0); SELECT * FROM expiry.fetch_events('lows');
SELECT expiry.ack_events('lows', max) FROM (SELECT pg_catalog.max(id) FROM expiry.event) m;
SELECT expiry.unsubscribe('lows');
CALL expiry.wait_for_events(0, '0');
INSERT INTO den.orders (id) VALUES (2);
CALL expiry.run('den');
SELECT expiry.drop_policy('den');
";

#[test]
fn search_path_of_the_role_and_of_the_session() {
    let mut den = Den::new();
    den.low_does(&SHADOWS.replace("SCHEMA", "den"));
    let path = format!("ALTER ROLE {} SET search_path = den, pg_catalog", den.low_name);
    den.low_does(&path);
    den.low = den.db.connect_as(&den.low_name);
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.low_creates_policy("status OPERATOR(pg_catalog.=) 'pending'", "");
    den.wait_for_cancelled(1);
    for statement in CALLS.split_terminator(";").map(str::trim).filter(|statement| !statement.is_empty()) {
        den.low_does(statement);
    }
    den.wait_for_cancelled(2);
    let seen = "SELECT coalesce(string_agg(DISTINCT what, ', '), '') FROM den.seen";
    let seen: String = den.superuser.query_one(seen, &[]).unwrap().get(0);
    assert_eq!(seen, "cancel");
    den.assert_only_low_was_seen(&["cancel"]);
    den.assert_victim_is_well();
}

/// R51: of the caller's own words the caller's search path decides; what it finds runs as the owner.
#[test]
fn operator_of_its_own_in_the_predicate() {
    let mut den = Den::new();
    den.low_does(
        "CREATE FUNCTION den.same(text, text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
             $$ BEGIN RETURN den.spy('operator') AND $1 OPERATOR(pg_catalog.=) $2; END $$;
         CREATE OPERATOR den.= (LEFTARG = text, RIGHTARG = text, FUNCTION = den.same);
         SET search_path = den, pg_catalog; INSERT INTO den.orders (id) VALUES (1)",
    );
    den.low_creates_policy("status = 'pending' AND 'a'::text = 'a'::text", "");
    den.wait_for_cancelled(1);
    den.superuser_does("SELECT * FROM expiry.status; SELECT * FROM expiry.preview('den')");
    den.assert_only_low_was_seen(&["operator", "cancel"]);
}

#[test]
fn search_path_and_settings_that_belong_to_others() {
    let mut den = Den::new();
    let (low, database) = (den.low_name.clone(), den.db.name.clone());
    for sql in [
        format!("ALTER DATABASE {database} SET search_path = den"),
        "ALTER FUNCTION expiry.events_after(bigint, int, text) SET search_path = den".into(),
        "ALTER FUNCTION vault.cancel_order(bigint) SET search_path = den".into(),
        format!("ALTER ROLE {} SET search_path = den", den.victim_name),
        format!("ALTER ROLE {low} SET pg_expiry.cancel_function = 'den.cancel_order(bigint)'"),
        format!("ALTER DATABASE {database} SET pg_expiry.cancel_function = 'den.cancel_order(bigint)'"),
        format!("ALTER ROLE {low} IN DATABASE {database} SET pg_expiry.predicate = 'den.spy_quietly(1)'"),
        "ALTER SYSTEM SET pg_expiry.enabled = off".into(),
    ] {
        den.low_is_refused(&sql, "42501");
    }
    den.low_is_refused("SET pg_expiry.cancel_function = 'den.cancel_order(bigint)'", "42501");
    den.assert_victim_is_well();
}

#[test]
fn temporary_objects_hide_nothing() {
    let mut den = Den::new();
    den.low_creates_policy("status = 'pending'", "");
    den.low_does("INSERT INTO den.orders (id) VALUES (1)");
    den.wait_for_cancelled(1);
    for table in ["policy", "binding", "event", "failure", "progress", "consumer", "orders"] {
        den.low_does(&format!(
            "CREATE TEMP TABLE {table} AS SELECT 'vault'::text AS name, 'vault.orders'::regclass AS relation, 1 AS id;
             CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON pg_temp.{table}
                 FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('temporary table')"
        ));
    }
    for catalog in ["pg_class", "pg_namespace", "pg_proc", "pg_index", "pg_authid", "pg_attribute"] {
        den.low_does(&format!(
            "CREATE TEMP VIEW {catalog} AS SELECT c.*, den.spy('temporary view') FROM pg_catalog.pg_class c"
        ));
    }
    den.low_does(&SHADOWS.replace("SCHEMA", "pg_temp"));
    den.low_does("CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (den.spy_quietly('temporary domain'))");
    for statement in CALLS.split_terminator(";").map(str::trim).filter(|statement| !statement.is_empty()) {
        den.low_does(statement);
    }
    den.wait_for_cancelled(2);
    let seen = "SELECT coalesce(string_agg(DISTINCT what, ', '), '') FROM den.seen";
    let seen: String = den.superuser.query_one(seen, &[]).unwrap().get(0);
    assert_eq!(seen, "cancel");
    den.assert_only_low_was_seen(&["cancel"]);
    den.assert_victim_is_well();
}

/// All that a table of the low role can have that runs when a row is read, indexed or written. (The domain's check is
/// no constant: PostgreSQL 18 would call it, and its subtransaction, in the middle of a look into the cache of types.)
#[test]
fn code_of_the_table() {
    let mut den = Den::new();
    den.low_does(
        "DROP FUNCTION den.cancel_order; DROP TABLE den.orders;
         CREATE DOMAIN den.status AS text CHECK (den.spy_quietly(concat('domain check', left(VALUE, 0))));
         CREATE TYPE den.number AS ENUM ('one', 'two');
         CREATE FUNCTION den.as_json(den.number) RETURNS json LANGUAGE plpgsql AS
             $$ BEGIN PERFORM den.spy('cast to json'); RETURN to_json(enum_out($1)::text); END $$;
         CREATE CAST (den.number AS json) WITH FUNCTION den.as_json(den.number);
         CREATE FUNCTION den.as_text(den.number) RETURNS text LANGUAGE plpgsql AS
             $$ BEGIN PERFORM den.spy('cast of the argument'); RETURN enum_out($1); END $$;
         CREATE CAST (den.number AS text) WITH FUNCTION den.as_text(den.number) AS ASSIGNMENT;
         CREATE FUNCTION den.upwards(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
             $$ BEGIN PERFORM den.spy('index expression'); RETURN upper($1); END $$;
         CREATE FUNCTION den.generated(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
             $$ BEGIN PERFORM den.spy('generated column'); RETURN upper($1); END $$;
         CREATE FUNCTION den.is_open(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
             $$ BEGIN PERFORM den.spy('predicate'); RETURN $1 = 'pending'; END $$;
         CREATE TABLE den.orders (
             id den.number PRIMARY KEY, status den.status NOT NULL DEFAULT 'pending', pay_by timestamptz DEFAULT now(),
             loud text GENERATED ALWAYS AS (den.generated(status)) STORED,
             CHECK (den.spy_quietly('check constraint'))
         );
         CREATE INDEX ON den.orders (den.upwards(status)) WHERE den.spy_quietly('index predicate');
         ALTER TABLE den.orders ENABLE ROW LEVEL SECURITY;
         CREATE POLICY p ON den.orders USING (den.spy('row security'));
         CREATE TRIGGER b BEFORE UPDATE ON den.orders FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('before row');
         CREATE TRIGGER a AFTER UPDATE ON den.orders FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('after row');
         CREATE TRIGGER s AFTER UPDATE ON den.orders FOR EACH STATEMENT EXECUTE FUNCTION den.spy_trigger('statement');
         CREATE CONSTRAINT TRIGGER d AFTER UPDATE ON den.orders DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION den.spy_trigger('deferred');
         CREATE TABLE den.note (what den.status);
         CREATE RULE r AS ON INSERT TO den.note DO ALSO SELECT den.spy('rule');
         CREATE FUNCTION den.cancel_order(k text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             UPDATE den.orders SET status = 'cancelled' WHERE id = k::den.number;
             INSERT INTO den.note VALUES ('noted'); PERFORM den.spy('cancel'); END $$;
         INSERT INTO den.orders (id) VALUES ('one'); TRUNCATE den.seen",
    );
    den.low_does(
        "SELECT expiry.create_policy('den.orders', 'pay_by', 'den.is_open(status)', 'den.cancel_order(text)', name => 'den')",
    );
    den.assert_only_low_was_seen(&[
        "domain check",
        "cast to json",
        "cast of the argument",
        "index expression",
        "index predicate",
        "generated column",
        "check constraint",
        "predicate",
        "before row",
        "after row",
        "statement",
        "deferred",
        "rule",
        "cancel",
    ]);
    // Others look at it, and change what makes the worker read it anew.
    den.low_does("INSERT INTO den.orders (id, pay_by) VALUES ('two', now() + interval '1 h')");
    den.superuser_does(
        "SELECT * FROM expiry.status; SELECT * FROM expiry.preview('den'); SELECT expiry.alter_policy('den', predicate => $$den.is_open(status)$$)",
    );
    den.low_does("UPDATE den.orders SET pay_by = now() WHERE id = 'two'; SELECT expiry.wake()");
    let cancelled = "SELECT count(*) FROM expiry.event WHERE policy = 'den'";
    wait_for_value(&mut den.superuser, cancelled, 2_i64);
    den.assert_only_low_was_seen(&[]);
}
