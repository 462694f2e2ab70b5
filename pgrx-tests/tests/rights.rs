//! Whose rights are in force, and who may do what.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, db_error, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// A table, its owner, and somebody else; both roles go with the database.
struct House {
    db: Db,
    superuser: Client,
    owner: String,
    low: String,
}

impl House {
    fn new() -> House {
        let db = Db::with_extension();
        let (owner, low) = (format!("owner_{}", db.name), format!("low_{}", db.name));
        let mut superuser = db.connect();
        superuser
            .batch_execute(&format!(
                "CREATE ROLE {owner} NOLOGIN; CREATE ROLE {low};
                 CREATE TABLE orders (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz DEFAULT now(), by text);
                 ALTER TABLE orders OWNER TO {owner};
                 CREATE FUNCTION cancel_order(k int) RETURNS void LANGUAGE sql AS
                     $$ UPDATE orders SET status = 'cancelled', by = current_user WHERE id = k $$"
            ))
            .unwrap();
        House { db, superuser, owner, low }
    }

    fn create_policy(&mut self) {
        self.superuser
            .batch_execute("SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(int)')")
            .unwrap();
    }

    fn act_as(&mut self, role: &str) {
        self.superuser.batch_execute(&format!("SET ROLE {role}")).unwrap();
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let House { owner, low, .. } = self;
            let _ = self.superuser.batch_execute(&format!(
                "RESET ROLE; DROP OWNED BY {owner}, {low} CASCADE; DROP ROLE {owner}; DROP ROLE {low}"
            ));
        }
    }
}

#[test]
fn superuser_makes_it_and_the_owner_runs_it() {
    let mut house = House::new();
    house.create_policy();
    house.superuser.batch_execute("INSERT INTO orders VALUES (1)").unwrap();
    let owner = house.owner.clone();
    wait_for_value(&mut house.superuser, "SELECT by FROM orders", owner.clone());
    wait_for_value(&mut house.superuser, "SELECT owner::text FROM expiry.policy", owner);
}

#[test]
fn member_of_the_owning_role_may() {
    let mut house = House::new();
    let (owner, low) = (house.owner.clone(), house.low.clone());
    house.superuser.batch_execute(&format!("GRANT {owner} TO {low}")).unwrap();
    house.act_as(&low);
    house.create_policy();
    house
        .superuser
        .batch_execute("SELECT expiry.pause(); SELECT expiry.resume(); SELECT name FROM expiry.status")
        .unwrap();
    house.superuser.batch_execute(&format!("RESET ROLE; REVOKE {owner} FROM {low}")).unwrap();
    house.act_as(&low);
    let error = db_error(house.superuser.batch_execute("SELECT expiry.drop_policy('orders')"));
    assert_eq!(error.code().code(), "42501");
    wait_for_value(&mut house.superuser, "SELECT count(*) FROM expiry.policy", 0_i64);
    house.superuser.batch_execute(&format!("RESET ROLE; GRANT pg_monitor TO {low}; SET ROLE {low}")).unwrap();
    wait_for_value(&mut house.superuser, "SELECT count(*) FROM expiry.status", 1_i64);
}

#[test]
fn new_owner_of_the_relation_takes_over() {
    let mut house = House::new();
    house.create_policy();
    house.superuser.batch_execute("INSERT INTO orders VALUES (1)").unwrap();
    let (owner, low) = (house.owner.clone(), house.low.clone());
    wait_for_value(&mut house.superuser, "SELECT by FROM orders WHERE id = 1", owner);
    house
        .superuser
        .batch_execute(&format!("GRANT ALL ON SCHEMA public TO {low}; ALTER TABLE orders OWNER TO {low}; INSERT INTO orders VALUES (2)"))
        .unwrap();
    wait_for_value(&mut house.superuser, "SELECT by FROM orders WHERE id = 2", low.clone());
    wait_for_value(&mut house.superuser, "SELECT owner::text FROM expiry.policy", low);
}

#[test]
fn predicate_runs_with_no_more_rights_than_the_owners() {
    let mut house = House::new();
    let low = house.low.clone();
    house
        .superuser
        .batch_execute(&format!(
            "CREATE SCHEMA den AUTHORIZATION {low}; GRANT USAGE ON SCHEMA den TO PUBLIC;
             CREATE TABLE den.seen (who text); ALTER TABLE den.seen OWNER TO {low}; GRANT INSERT ON den.seen TO PUBLIC;
             CREATE FUNCTION den.spy(t text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO den.seen VALUES (current_user); RETURN true; EXCEPTION WHEN OTHERS THEN RETURN true; END $$"
        ))
        .unwrap();
    let result = house.superuser.batch_execute(
        "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending' AND den.spy('x')$$, 'cancel_order(int)')",
    );
    // Whether it may write in an immutable function or not: never as a superuser.
    let _ = result;
    house.superuser.batch_execute("INSERT INTO orders VALUES (1)").unwrap();
    wait_until("a look", 10 * SECOND, || {
        house
            .superuser
            .query_one("SELECT state IN ('active', 'stopped') FROM expiry.status", &[])
            .ok()
            .map(|row| row.get::<_, bool>(0))
    });
    wait_for_value(&mut house.superuser, "SELECT count(*) FROM den.seen WHERE who = 'postgres'", 0_i64);
}

#[test]
fn cancel_function_of_a_stranger_is_not_taken_for_the_old_one() {
    let mut house = House::new();
    let low = house.low.clone();
    house.create_policy();
    house
        .superuser
        .batch_execute(&format!(
            "GRANT CREATE ON SCHEMA public TO {low}; BEGIN; DROP FUNCTION cancel_order(int); SET LOCAL ROLE {low};
             CREATE FUNCTION cancel_order(k int) RETURNS void LANGUAGE sql AS 'SELECT'; COMMIT"
        ))
        .unwrap();
    wait_until("the policy to stop", 10 * SECOND, || {
        let row = house
            .superuser
            .query_one("SELECT state || coalesce(reason, '') FROM expiry.status", &[])
            .unwrap();
        let shown: String = row.get(0);
        if shown.starts_with("stopped") && shown.contains("42501") { Ok(()) } else { Err(shown) }
    });
    house
        .superuser
        .batch_execute("SELECT expiry.alter_policy('orders', cancel_function => 'cancel_order(int)')")
        .unwrap();
    wait_for_value(
        &mut house.superuser,
        "SELECT state FROM expiry.status WHERE state <> 'indexing'",
        "active".to_owned(),
    );
}

/// R50.
#[test]
fn forced_row_security_is_an_error_and_not_silence() {
    let mut house = House::new();
    house.create_policy();
    house
        .superuser
        .batch_execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        .unwrap();
    wait_until("the policy to stop", 10 * SECOND, || {
        let row = house
            .superuser
            .query_one("SELECT state || coalesce(reason, '') FROM expiry.status", &[])
            .unwrap();
        let shown: String = row.get(0);
        if shown.starts_with("stopped") && shown.contains("42501") { Ok(()) } else { Err(shown) }
    });
    let again = "SELECT expiry.drop_policy('orders')";
    house.superuser.batch_execute(again).unwrap();
    let error = db_error(house.superuser.batch_execute(
        "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(int)')",
    ));
    assert_eq!(error.code().code(), "42501");
    assert!(error.hint().unwrap().contains("NO FORCE ROW LEVEL SECURITY"), "{error:?}");
}

/// R51.
#[test]
fn search_path_of_the_database_captures_nothing() {
    let mut house = House::new();
    house.create_policy();
    let (low, name) = (house.low.clone(), house.db.name.clone());
    house
        .superuser
        .batch_execute(&format!(
            "CREATE SCHEMA evil AUTHORIZATION {low}; GRANT USAGE ON SCHEMA evil TO PUBLIC;
             CREATE TABLE evil.calls (what text); GRANT INSERT ON evil.calls TO PUBLIC;
             CREATE FUNCTION evil.cancel_order(k int) RETURNS void LANGUAGE sql AS $$ INSERT INTO evil.calls VALUES ('cancel') $$;
             CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ INSERT INTO evil.calls VALUES ('now'); SELECT '-infinity'::timestamptz $$;
             CREATE FUNCTION evil.lt(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ INSERT INTO evil.calls VALUES ('<='); SELECT true $$;
             CREATE OPERATOR evil.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.lt);
             CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE sql AS $$ INSERT INTO evil.calls VALUES ('='); SELECT true $$;
             CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq);
             ALTER DATABASE {name} SET search_path = evil, public"
        ))
        .unwrap();
    let mut client = house.db.connect();
    client.batch_execute("CREATE TEMP TABLE orders (id int); INSERT INTO public.orders VALUES (1)").unwrap();
    client.batch_execute("SELECT * FROM expiry.status; SELECT * FROM expiry.preview('orders')").unwrap();
    client.batch_execute("SELECT expiry.pause(); SELECT expiry.resume()").unwrap();
    wait_for_value(&mut client, "SELECT status FROM public.orders", "cancelled".to_owned());
    client.batch_execute("CALL expiry.run()").unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM evil.calls", 0_i64);
}
