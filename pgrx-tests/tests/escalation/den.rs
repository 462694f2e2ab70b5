//! Who attacks, who is attacked, and how it would be seen.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, db_error, shared_cluster, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// What nobody but the victim may read.
pub const SECRET: &str = "swordfish";

/// `low` has the schema `den` and no other right. `victim` has the schema `vault`, where a policy has cancelled a
/// row and quarantined another, and a consumer. Both may log in; both roles go with the database.
pub struct Den {
    pub superuser: Client,
    pub low: Client,
    pub victim: Client,
    pub low_name: String,
    pub victim_name: String,
    pub db: Db,
}

/// `spy` tells the log, which no rollback undoes, as whom it runs and whether it could read the victim's secret, and
/// writes that down where it can. Where only immutable functions are allowed, `spy_quietly` calls it.
const DEN: &str = "
CREATE TABLE den.seen (what text, who text);
GRANT INSERT ON den.seen TO PUBLIC;
CREATE FUNCTION den.spy(what text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    secret text := 'no secret';
BEGIN
    BEGIN
        SELECT 'the ' || word INTO secret FROM vault.secret;
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END;
    RAISE LOG 'spy in %: % saw % as %', current_database(), what, secret, current_user;
    BEGIN
        INSERT INTO den.seen VALUES (what, current_user);
    EXCEPTION WHEN read_only_sql_transaction THEN NULL;
    END;
    RETURN true;
END $$;
CREATE FUNCTION den.spy_quietly(what text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE COST 0.0000001 AS
    $$ BEGIN RETURN den.spy(what); END $$;
CREATE FUNCTION den.spy_trigger() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM den.spy(TG_ARGV[0]); RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END; END $$;
CREATE TABLE den.orders (
    id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz NOT NULL DEFAULT now()
);
CREATE FUNCTION den.cancel_order(k bigint) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN PERFORM den.spy('cancel'); UPDATE den.orders SET status = 'cancelled' WHERE id = k; END $$;
";

const VAULT: &str = "
CREATE TABLE vault.secret (word text);
CREATE TABLE vault.orders (
    id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz NOT NULL DEFAULT now()
);
CREATE FUNCTION vault.cancel_order(k bigint) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    IF k = 13 THEN RAISE 'the word is swordfish'; END IF;
    UPDATE vault.orders SET status = 'cancelled' WHERE id = k;
    RETURN '{\"word\": \"swordfish\"}';
END $$;
SELECT expiry.create_policy('vault.orders', 'pay_by', $$status = 'pending'$$, 'vault.cancel_order(bigint)',
    name => 'vault', max_attempts => 1, channel => 'vault swordfish');
INSERT INTO vault.secret VALUES ('swordfish');
INSERT INTO vault.orders VALUES (1), (13);
";

impl Den {
    pub fn new() -> Den {
        let db = Db::with_extension();
        let (low_name, victim_name) = (format!("low_{}", db.name), format!("victim_{}", db.name));
        let mut superuser = db.connect();
        superuser
            .batch_execute(&format!(
                "CREATE ROLE {low_name} LOGIN; CREATE ROLE {victim_name} LOGIN;
                 CREATE SCHEMA den AUTHORIZATION {low_name}; CREATE SCHEMA vault AUTHORIZATION {victim_name};
                 GRANT USAGE ON SCHEMA den, vault TO PUBLIC"
            ))
            .unwrap();
        let (mut low, mut victim) = (db.connect_as(&low_name), db.connect_as(&victim_name));
        victim.batch_execute(VAULT).unwrap();
        low.batch_execute(DEN).unwrap();
        wait_for_value(&mut victim, "SELECT count(*) FROM expiry.event WHERE policy = 'vault'", 2_i64);
        wait_for_value(&mut victim, "SELECT last_error LIKE '%swordfish%' FROM expiry.progress", true);
        victim.batch_execute("SELECT expiry.subscribe('vault swordfish', 'vault', 0)").unwrap();
        Den { superuser, low, victim, low_name, victim_name, db }
    }

    /// The low role does this.
    #[track_caller]
    pub fn low_does(&mut self, sql: &str) {
        self.low.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    #[track_caller]
    pub fn superuser_does(&mut self, sql: &str) {
        self.superuser.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The low role's policy `den` on den.orders; `more` are further arguments, each with a comma before it.
    #[track_caller]
    pub fn low_creates_policy(&mut self, predicate: &str, more: &str) {
        self.low_does(&format!(
            "SELECT expiry.create_policy('den.orders', 'pay_by', $p${predicate}$p$, 'den.cancel_order(bigint)',
                 name => 'den'{more})"
        ));
    }

    /// The low role must get this error.
    #[track_caller]
    pub fn low_is_refused(&mut self, sql: &str, sqlstate: &str) {
        let error = db_error(self.low.simple_query(sql));
        assert_eq!(error.code().code(), sqlstate, "{sql}: {error:?}");
    }

    /// Waits until the low role's order with this id is cancelled. Looked at by the low role: whoever queries a
    /// table runs the functions of its indexes' predicates as himself, in all of PostgreSQL.
    #[track_caller]
    pub fn wait_for_cancelled(&mut self, id: i64) {
        let status = format!("SELECT status::pg_catalog.text FROM den.orders WHERE id = {id}");
        let mut client = self.db.connect_as(&self.low_name);
        client.batch_execute("SET search_path = pg_catalog").unwrap();
        wait_for_value(&mut client, &status, "cancelled".to_owned());
    }

    /// The low role's code has run in each of these places, and never as anybody else.
    #[track_caller]
    pub fn assert_only_low_was_seen(&mut self, places: &[&str]) {
        for place in places {
            let sql = "SELECT count(*) FROM den.seen WHERE what = $1";
            wait_until(format_args!("{place} to be seen"), 10 * SECOND, || {
                self.superuser.query_one(sql, &[place]).unwrap().get::<_, i64>(0) > 0
            });
        }
        let log = shared_cluster().log();
        let here = format!("LOG:  spy in {}: ", self.db.name);
        let as_low = format!(" saw no secret as {}", self.low_name);
        let spied = log.lines().filter(|line| line.contains(&here));
        let others: Vec<&str> = spied.filter(|line| !line.ends_with(&as_low)).collect();
        assert!(others.is_empty(), "code of the low role ran as somebody else:\n{}", others.join("\n"));
    }

    /// The victim's policy works, and is what it was.
    #[track_caller]
    pub fn assert_victim_is_well(&mut self) {
        let sql = "SELECT concat_ws(' ', owner, deadline, predicate, cancel_function, paused, channel) FROM expiry.policy
                   WHERE name = 'vault'";
        let policy: String = self.victim.query_one(sql, &[]).unwrap().get(0);
        let right = format!(
            "{} pay_by (status = 'pending'::text) vault.cancel_order(bigint) f vault swordfish",
            self.victim_name
        );
        assert_eq!(policy, right);
        let next: i64 = self.victim.query_one("SELECT max(id) + 1 FROM vault.orders", &[]).unwrap().get(0);
        self.victim.execute("INSERT INTO vault.orders VALUES ($1)", &[&next]).unwrap();
        let status = format!("SELECT status FROM vault.orders WHERE id = {next}");
        wait_for_value(&mut self.victim, &status, "cancelled".to_owned());
        let left = "SELECT count(*) FROM vault.secret WHERE word = 'swordfish'";
        assert_eq!(self.victim.query_one(left, &[]).unwrap().get::<_, i64>(0), 1);
    }
}

impl Drop for Den {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let both = format!("{}, {}", self.low_name, self.victim_name);
            let _ = self.superuser.batch_execute(&format!(
                "RESET ROLE; SELECT expiry.stop_workers(); DROP OWNED BY {both} CASCADE; DROP ROLE {both}"
            ));
        }
    }
}
