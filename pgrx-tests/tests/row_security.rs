//! Row security on the table of a policy: an error that says so, never silence.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, db_error, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// A tenant's table whose rows one sees with `app.tenant` set; the owner is no superuser, and cannot log in.
struct Tenant {
    client: Client,
    db: Db,
    owner: String,
}

impl Tenant {
    fn new() -> Tenant {
        let db = Db::with_extension();
        let owner = format!("shop_{}", db.name);
        let mut client = db.connect();
        client
            .batch_execute(&format!(
                "CREATE ROLE {owner} NOLOGIN; CREATE SCHEMA shop AUTHORIZATION {owner}; SET ROLE {owner};
                 CREATE TABLE shop.orders (
                     id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz DEFAULT now(), tenant text DEFAULT 'a'
                 );
                 CREATE POLICY of_tenant ON shop.orders USING (tenant = current_setting('app.tenant', true));
                 CREATE FUNCTION shop.cancel_order(k int) RETURNS void LANGUAGE sql AS
                     $$ UPDATE shop.orders SET status = 'cancelled' WHERE id = k $$;
                 RESET ROLE"
            ))
            .unwrap();
        Tenant { client, db, owner }
    }

    fn sql(&mut self, sql: &str) {
        self.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    fn create_policy(&mut self) -> Result<(), pg_expiry_tests::postgres::Error> {
        self.client.batch_execute(
            "SELECT expiry.create_policy('shop.orders', 'pay_by', $$status = 'pending'$$, 'shop.cancel_order(int)')",
        )
    }

    fn wait_for_stop(&mut self) {
        wait_until("the policy to stop", 10 * SECOND, || {
            let sql =
                "SELECT s.state, coalesce(s.reason, ''), p.state, coalesce(p.reason, '') FROM expiry.status s
                       JOIN expiry.progress p ON p.policy = s.name";
            let Some(row) = self.client.query_opt(sql, &[]).unwrap() else {
                return Err("no progress".to_owned());
            };
            let shown: [&str; 4] = std::array::from_fn(|column| row.get(column));
            let is_told = |reason: &str| reason.contains("42501") && reason.contains("row-level security");
            let is_so =
                shown[0] == "stopped" && is_told(shown[1]) && shown[2] == "stopped" && is_told(shown[3]);
            if is_so { Ok(()) } else { Err(format!("{shown:?}")) }
        });
    }

    fn wait_for_cancelled(&mut self, id: i32) {
        let sql = format!("SELECT status FROM shop.orders WHERE id = {id}");
        wait_for_value(&mut self.client, &sql, "cancelled".to_owned());
        let state = "SELECT state || coalesce(reason, '') FROM expiry.status";
        wait_for_value(&mut self.client, state, "active".to_owned());
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let owner = &self.owner;
            let _ = self.client.batch_execute(&format!("DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}"));
        }
    }
}

/// R50: forced, it stops the policy with a reason; lifted, the policy goes on; again and again. Nothing is
/// counted against a row.
#[test]
fn forced_stops_and_lifted_goes_on() {
    let mut tenant = Tenant::new();
    tenant.sql("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY");
    tenant.create_policy().unwrap();
    for round in 1..=2 {
        tenant.sql(&format!("INSERT INTO shop.orders (id) VALUES ({round}1)"));
        tenant.wait_for_cancelled(round * 10 + 1);
        tenant.sql(&format!(
            "ALTER TABLE shop.orders FORCE ROW LEVEL SECURITY; INSERT INTO shop.orders (id) VALUES ({round}2)"
        ));
        tenant.wait_for_stop();
        // By hand it says so too, and so does whatever looks at rows.
        for sql in [
            "CALL expiry.run('orders')",
            "SELECT * FROM expiry.preview('orders')",
            "SELECT expiry.resume('orders')",
        ] {
            let error = db_error(tenant.client.simple_query(sql));
            assert_eq!(error.code().code(), "42501", "{sql}");
            assert!(error.hint().unwrap().contains("NO FORCE ROW LEVEL SECURITY"), "{sql}: {error:?}");
        }
        let backlog = "SELECT backlog FROM expiry.status";
        let shown: Option<String> = tenant.client.query_one(backlog, &[]).unwrap().get(0);
        assert_eq!(shown, None, "what cannot be seen is not counted as nothing");
        let pending = "SELECT count(*) FROM shop.orders WHERE status = 'pending'";
        assert_eq!(tenant.client.query_one(pending, &[]).unwrap().get::<_, i64>(0), 1);
        tenant.sql("ALTER TABLE shop.orders NO FORCE ROW LEVEL SECURITY");
        tenant.wait_for_cancelled(round * 10 + 2);
    }
    let failures = "SELECT count(*) FROM expiry.failure";
    assert_eq!(tenant.client.query_one(failures, &[]).unwrap().get::<_, i64>(0), 0);
    let events = "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'";
    assert_eq!(tenant.client.query_one(events, &[]).unwrap().get::<_, i64>(0), 4);
}

/// R50: it is refused from the beginning.
#[test]
fn forced_before_the_policy_is_made() {
    let mut tenant = Tenant::new();
    tenant.sql("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY");
    let error = db_error(tenant.create_policy());
    assert_eq!(error.code().code(), "42501");
    assert!(error.hint().unwrap().contains("NO FORCE ROW LEVEL SECURITY"), "{error:?}");
    wait_for_value(&mut tenant.client, "SELECT count(*) FROM expiry.policy", 0_i64);
    // FORCE without ENABLE hides nothing.
    tenant.sql("ALTER TABLE shop.orders DISABLE ROW LEVEL SECURITY; INSERT INTO shop.orders (id) VALUES (1)");
    tenant.create_policy().unwrap();
    tenant.wait_for_cancelled(1);
    tenant.sql("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY; INSERT INTO shop.orders (id) VALUES (2)");
    tenant.wait_for_stop();
}

/// R50: enabled without FORCE the owner sees all rows, and with BYPASSRLS whatever is forced. No session's setting
/// of row_security makes a difference.
#[test]
fn owner_whom_it_does_not_bind() {
    let mut tenant = Tenant::new();
    tenant.sql("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY; INSERT INTO shop.orders (id) VALUES (1)");
    let (owner, name) = (tenant.owner.clone(), tenant.db.name.clone());
    tenant.sql(&format!(
        "ALTER DATABASE {name} SET row_security = off; ALTER ROLE {owner} SET row_security = off"
    ));
    tenant.create_policy().unwrap();
    tenant.wait_for_cancelled(1);
    tenant.sql(&format!(
        "ALTER ROLE {owner} BYPASSRLS; ALTER TABLE shop.orders FORCE ROW LEVEL SECURITY; INSERT INTO shop.orders (id) VALUES (2)"
    ));
    tenant.wait_for_cancelled(2);
    tenant.sql("INSERT INTO shop.orders (id) VALUES (3)");
    tenant.sql("CALL expiry.run('orders')");
    tenant.wait_for_cancelled(3);
    // The right goes, the rows are hidden, the policy says so; the right comes back.
    tenant.sql(&format!("ALTER ROLE {owner} NOBYPASSRLS; INSERT INTO shop.orders (id) VALUES (4)"));
    tenant.wait_for_stop();
    tenant.sql(&format!("ALTER ROLE {owner} BYPASSRLS"));
    tenant.wait_for_cancelled(4);
}

/// R50: a partition's own row security does not count for who comes by the parent, as everywhere in PostgreSQL; the
/// parent's does.
#[test]
fn partitioned_table() {
    let mut tenant = Tenant::new();
    let owner = tenant.owner.clone();
    tenant.sql(&format!(
        "SET ROLE {owner}; DROP TABLE shop.orders;
         CREATE TABLE shop.orders (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz DEFAULT now(), tenant text)
             PARTITION BY RANGE (id);
         CREATE TABLE shop.orders_1 PARTITION OF shop.orders FOR VALUES FROM (0) TO (100);
         CREATE POLICY none ON shop.orders_1 USING (false); CREATE POLICY none ON shop.orders USING (false);
         ALTER TABLE shop.orders_1 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; RESET ROLE;
         INSERT INTO shop.orders (id) VALUES (1)"
    ));
    tenant.create_policy().unwrap();
    tenant.wait_for_cancelled(1);
    tenant.sql("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; INSERT INTO shop.orders (id) VALUES (2)");
    tenant.wait_for_stop();
    tenant.sql("ALTER TABLE shop.orders DISABLE ROW LEVEL SECURITY");
    tenant.wait_for_cancelled(2);
}
