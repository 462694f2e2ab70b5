//! The common set-up: a shop whose unpaid orders are cancelled at their deadline.

use std::ops::RangeInclusive;
use std::time::Duration;

use postgres::Client;

use crate::{Db, Listener, wait_until};

const SCHEMA: &str = include_str!("shop.sql");
const STOCK: i32 = 1_000_000;

/// Tables `stock` and `orders(id, sku, status, pay_by, cancelled_at)`, and `cancel_order(bigint)`.
pub struct Shop {
    /// A superuser's autocommit connection, the shop's owner. Ends before its database is dropped.
    pub client: Client,
    pub db: Db,
}

impl Shop {
    /// On the shared server, with the extension and a policy named `orders`.
    pub fn new() -> Shop {
        let mut shop = Shop::without_policy();
        shop.create_policy("");
        shop
    }

    /// On the shared server, with the extension and no policy yet.
    pub fn without_policy() -> Shop {
        let shop = Shop::in_database(Db::new());
        shop.db.create_extension();
        shop
    }

    /// On the shared server, with the extension, these settings of the database, and no policy yet.
    #[track_caller]
    pub fn with_settings(settings: &[(&str, &str)]) -> Shop {
        let mut shop = Shop::in_database(Db::new());
        for (name, value) in settings {
            shop.set_for_database(name, value);
        }
        shop.db.create_extension();
        shop
    }

    /// Only the tables and the function, in that database.
    pub fn in_database(db: Db) -> Shop {
        let mut client = db.connect();
        client.batch_execute(SCHEMA).expect("the shop's schema");
        Shop { client, db }
    }

    /// As [`in_database`](Shop::in_database), with nothing in the tables.
    pub fn without_rows(db: Db) -> Shop {
        let mut shop = Shop::in_database(db);
        shop.client.batch_execute("TRUNCATE stock, orders").expect("empty tables");
        shop
    }

    /// The usual policy; `more` holds further arguments, each with a comma before it.
    #[track_caller]
    pub fn create_policy(&mut self, more: &str) {
        let sql = format!(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', \
             predicate => $$status = 'pending'$$, cancel_function => 'cancel_order(bigint)'{more})"
        );
        self.client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// ALTER DATABASE ... SET; for sessions and workers that start later.
    #[track_caller]
    pub fn set_for_database(&mut self, name: &str, value: &str) {
        let sql = format!("ALTER DATABASE {} SET {name} = '{}'", self.db.name, value.replace('\'', "''"));
        self.client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// New workers, with the settings that the database has now.
    pub fn restart_workers(&mut self) {
        let sql = "SELECT expiry.stop_workers(); SELECT expiry.start_workers()";
        self.client.batch_execute(sql).expect("new workers");
    }

    /// Waits (30 s) until every policy has its deadline index: to be called before a transaction that
    /// stays open, for which the build would wait.
    #[track_caller]
    pub fn wait_for_index(&mut self) {
        let sql = "SELECT coalesce(string_agg(name, ', '), '') FROM expiry.policy p WHERE NOT EXISTS (
                       SELECT FROM pg_index i WHERE i.indrelid = p.relation AND i.indpred IS NOT NULL AND i.indisvalid)";
        wait_until("deadline indexes", Duration::from_secs(30), || match self.value::<String>(sql) {
            missing if missing.is_empty() => Ok(()),
            missing => Err(missing),
        });
    }

    /// Waits (30 s) until a worker of this database has had a look; its pid.
    #[track_caller]
    pub fn wait_for_worker(&mut self) -> i32 {
        let sql = "SELECT pid FROM expiry.workers
                   WHERE database = current_database() AND last_pass IS NOT NULL AND pid IS NOT NULL";
        wait_until("a worker", Duration::from_secs(30), || {
            let workers = self.client.query(sql, &[]).expect("expiry.workers");
            workers.first().map(|row| row.get(0))
        })
    }

    /// A client that hears of cancellations on the default channel.
    pub fn listen(&self) -> Listener {
        self.db.listen("order_expired")
    }

    /// A pending order whose time is up since `ago`.
    pub fn due(&mut self, id: i64, ago: Duration) {
        self.insert(id, -ago.as_secs_f64());
    }

    /// A pending order whose time is up in `due_in`.
    pub fn order(&mut self, id: i64, due_in: Duration) {
        self.insert(id, due_in.as_secs_f64());
    }

    fn insert(&mut self, id: i64, due_in_seconds: f64) {
        let sql = "INSERT INTO orders (id, pay_by) VALUES ($1, now() + make_interval(secs => $2))";
        self.client.execute(sql, &[&id, &due_in_seconds]).expect("an order");
    }

    /// Many pending orders; `pay_by` is SQL, in which `id` may occur.
    #[track_caller]
    pub fn fill(&mut self, ids: RangeInclusive<i64>, pay_by: &str) {
        let (first, last) = ids.into_inner();
        let sql = format!(
            "INSERT INTO orders (id, pay_by) SELECT id, {pay_by} FROM generate_series({first}::bigint, {last}) id"
        );
        self.client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// What a payment does; false when the order was no longer to be paid.
    pub fn pay(&mut self, id: i64) -> bool {
        let sql = "UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'pending'";
        self.client.execute(sql, &[&id]).expect("a payment") == 1
    }

    pub fn status(&mut self, id: i64) -> String {
        let row = self.client.query_one("SELECT status FROM orders WHERE id = $1", &[&id]);
        row.expect("the order").get(0)
    }

    /// One value of a query without parameters.
    #[track_caller]
    pub fn value<T: postgres::types::FromSqlOwned>(&mut self, sql: &str) -> T {
        let row = self.client.query_one(sql, &[]);
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Makes `cancel_order` fail or do anything else: `body` is plpgsql.
    #[track_caller]
    pub fn replace_cancel_order(&mut self, body: &str) {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE plpgsql \
             AS $body$ BEGIN {body}; END $body$"
        );
        self.client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Waits (10 s) until no pending order is due.
    #[track_caller]
    pub fn settle(&mut self) {
        let sql = "SELECT count(*) FROM orders WHERE status = 'pending' AND pay_by <= now()";
        wait_until("nothing to be due", Duration::from_secs(10), || match self.value::<i64>(sql) {
            0 => Ok(()),
            left => Err(format!("{left} orders due")),
        });
    }

    /// Waits (30 s) until so many orders have been cancelled.
    #[track_caller]
    pub fn wait_for_cancelled(&mut self, orders: i64) {
        let sql = "SELECT count(*) FROM orders WHERE status = 'cancelled'";
        wait_until(format_args!("{orders} cancelled orders"), Duration::from_secs(30), || {
            match self.value::<i64>(sql) {
                cancelled if cancelled == orders => Ok(()),
                cancelled => Err(cancelled),
            }
        });
    }

    /// All of so many orders are pending, and there is neither an event nor a failure.
    #[track_caller]
    pub fn assert_untouched(&mut self, orders: i64) {
        assert_eq!(self.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), orders);
        let traces = "SELECT (SELECT count(*) FROM expiry.event) + (SELECT count(*) FROM expiry.failure)";
        assert_eq!(self.value::<i64>(traces), 0);
    }

    /// The invariant of all cases: a row is paid, or cancelled, or pending for a reason (its time
    /// is not up, or a failure is recorded); a cancelled row has one event and gave back one unit
    /// of stock, any other row has no event.
    #[track_caller]
    pub fn assert_invariant(&mut self) {
        let wrong = self.client.query(
            "SELECT id, status, pay_by::text, events, failures
             FROM orders
             LEFT JOIN (SELECT (key->>'id')::bigint AS id, count(*) AS n FROM expiry.event
                        WHERE kind = 'cancelled' GROUP BY 1) e USING (id)
             LEFT JOIN (SELECT (key->>'id')::bigint AS id, count(*) AS n FROM expiry.failure GROUP BY 1) f USING (id),
             LATERAL (SELECT coalesce(e.n, 0) AS events, coalesce(f.n, 0) AS failures) c
             WHERE CASE status
                 WHEN 'paid' THEN events <> 0
                 WHEN 'cancelled' THEN events <> 1 OR failures <> 0
                 WHEN 'pending' THEN events <> 0 OR failures > 1 OR (failures = 0 AND pay_by <= now())
                 ELSE true END
             ORDER BY id LIMIT 20",
            &[],
        );
        let wrong = wrong.expect("orders, events and failures");
        let describe = |row: &postgres::Row| {
            let (id, status): (i64, String) = (row.get(0), row.get(1));
            let pay_by: Option<String> = row.get(2);
            let (events, failures): (i64, i64) = (row.get(3), row.get(4));
            format!("order {id}: {status}, pay_by {pay_by:?}, {events} events, {failures} failures")
        };
        let wrong: Vec<String> = wrong.iter().map(describe).collect();
        assert!(wrong.is_empty(), "orders that break the invariant:\n{}", wrong.join("\n"));

        let cancelled: i64 = self.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
        let qty: i32 = self.value("SELECT qty FROM stock WHERE sku = 1");
        assert_eq!(i64::from(qty - STOCK), cancelled, "units given back to stock");
    }
}

impl Default for Shop {
    fn default() -> Shop {
        Shop::new()
    }
}
