//! pg_cron, which calls a procedure that works in batches. Debian 12 has version 1.4, whose finest interval is a
//! minute.

use super::Peer;
use crate::checkout::Scheme;
use crate::shop::Shop;

#[derive(Default)]
pub struct PgCron {
    version: String,
}

impl PgCron {
    /// Its tables are in this database, cron.database_name; its jobs may run in others.
    fn run(shop: &Shop, sql: &str) {
        let mut client = shop.db.endpoint.connect("postgres");
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

impl Peer for PgCron {
    fn name(&self) -> &'static str {
        "pg_cron, each minute"
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn set_up(&mut self, shop: &mut Shop) {
        PgCron::run(shop, "CREATE EXTENSION IF NOT EXISTS pg_cron");
        let mut client = shop.db.endpoint.connect("postgres");
        let sql = "SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'";
        self.version = client.query_one(sql, &[]).expect("a version").get(0);
    }

    fn start(&mut self, shop: &mut Shop) {
        let sql =
            "SELECT cron.schedule_in_database('drain', '* * * * *', 'CALL drain_by_batch(1000, false)', ";
        PgCron::run(shop, &format!("{sql}'{}')", shop.db.name));
    }

    fn stop(&mut self, shop: &mut Shop) {
        PgCron::run(shop, "SELECT cron.unschedule('drain')");
        // It may be at work for one more time, and what the next one does must not meet it.
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_cron'";
        pg_expiry_tests::wait_until("pg_cron's job to end", std::time::Duration::MAX, || {
            match shop.value::<i64>(sql) {
                0 => Ok(()),
                running => Err(running),
            }
        });
    }

    fn scheme(&self) -> Scheme {
        Scheme::indexed()
    }

    fn backend_types(&self) -> Option<&'static str> {
        Some("pg\\_cron%")
    }
}
