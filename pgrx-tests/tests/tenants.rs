//! Two or more owners of orders in one database, each served by a worker of its own; for the tests of events.

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, wait_for_value};

pub struct Tenants {
    pub superuser: Client,
    pub db: Db,
    /// Roles that may log in; each owns a table and a policy of its name.
    pub names: Vec<String>,
}

impl Tenants {
    /// `more` are further arguments of create_policy, each with a comma before it.
    pub fn new(count: usize, more: &str) -> Tenants {
        let db = Db::with_extension();
        let mut superuser = db.connect();
        let names: Vec<String> = (1..=count).map(|n| format!("t{n}_{}", db.name)).collect();
        superuser.batch_execute("GRANT ALL ON SCHEMA public TO PUBLIC").unwrap();
        for name in &names {
            superuser
                .batch_execute(&format!(
                    "CREATE ROLE {name} LOGIN; SET ROLE {name};
                     CREATE TABLE {name} (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz DEFAULT now());
                     CREATE FUNCTION cancel_{name}(ids bigint[]) RETURNS void LANGUAGE sql AS
                         $$ UPDATE {name} SET status = 'cancelled' WHERE id = ANY (ids) $$;
                     SELECT expiry.create_policy('{name}', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                         cancel_function => 'cancel_{name}(bigint[])'{more});
                     RESET ROLE"
                ))
                .unwrap();
        }
        let mut tenants = Tenants { superuser, db, names };
        // An index build waits for all older transactions, and some test holds a worker in one.
        let indexed =
            "SELECT count(*) FROM pg_index WHERE indpred IS NOT NULL AND indisvalid AND indrelid >= 16384";
        wait_for_value(&mut tenants.superuser, indexed, i64::try_from(count).unwrap());
        tenants
    }

    /// Orders of one tenant; `pay_by` is SQL in which `id` may occur.
    pub fn fill(&mut self, tenant: usize, ids: std::ops::RangeInclusive<i64>, pay_by: &str) {
        let sql = format!(
            "INSERT INTO {} (id, pay_by) SELECT id, {pay_by} FROM generate_series({}::bigint, {}) id; SELECT expiry.wake()",
            self.names[tenant],
            ids.start(),
            ids.end()
        );
        self.superuser.batch_execute(&sql).unwrap();
    }

    /// A session of that tenant.
    pub fn connect(&self, tenant: usize) -> Client {
        self.db.connect_as(&self.names[tenant])
    }

    #[track_caller]
    pub fn value<T: pg_expiry_tests::postgres::types::FromSqlOwned>(&mut self, sql: &str) -> T {
        self.superuser.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let all = self.names.join(", ");
            let _ = self.superuser.batch_execute(&format!(
                "SELECT expiry.stop_workers(); DROP OWNED BY {all} CASCADE; DROP ROLE {all}"
            ));
        }
    }
}
