//! The shop on a server of its own, set up as one would for work: it syncs, and commits are timed.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::postgres::types::FromSqlOwned;
use pg_expiry_tests::{Cluster, Db, wait_until};

const SCHEMA: &str = include_str!("../shop.sql");
const PATIENCE: Duration = Duration::from_secs(1800);

/// The server that all contests share.
pub fn cluster() -> Cluster {
    [
        ("fsync", "on"),
        ("shared_buffers", "1GB"),
        ("max_wal_size", "16GB"),
        ("checkpoint_timeout", "1h"),
        ("track_commit_timestamp", "on"),
        ("autovacuum", "off"),
    ]
    .into_iter()
    .fold(Cluster::builder(), |builder, (name, value)| builder.setting(name, value))
    .start()
}

pub struct Shop {
    pub client: Client,
    pub db: Db,
}

impl Shop {
    /// Tables and functions, the extension, no policy.
    pub fn open(cluster: &Cluster) -> Shop {
        let db = cluster.create_database();
        let client = connect(&db);
        let mut shop = Shop { client, db };
        shop.run(SCHEMA);
        shop.run("CREATE EXTENSION pg_expiry");
        shop
    }

    pub fn connect(&self) -> Client {
        connect(&self.db)
    }

    pub fn run(&mut self, sql: &str) {
        self.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub fn value<T: FromSqlOwned>(&mut self, sql: &str) -> T {
        self.client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Nothing but these orders, pending; `pay_by` is SQL, in which `id` may occur.
    pub fn fill(&mut self, orders: i64, pay_by: &str) {
        self.run("TRUNCATE orders, expiry.event");
        self.run("UPDATE stock SET qty = 1000000");
        self.add(1, orders, pay_by);
        self.run("VACUUM (ANALYZE) orders, stock");
        self.run("CHECKPOINT");
    }

    /// Orders with ids from `first` on.
    pub fn add(&mut self, first: i64, orders: i64, pay_by: &str) {
        let sql = format!(
            "INSERT INTO orders (id, sku, pay_by) SELECT id, 1 + id % 100, {pay_by}
             FROM generate_series({first}::bigint, {first} + {orders} - 1) id"
        );
        self.run(&sql);
    }

    pub fn create_policy(&mut self, function: &str, more: &str) {
        self.run(&format!(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => '{function}'{more})"
        ));
    }

    /// A worker has looked at the policy and will again.
    pub fn wait_for_worker(&mut self) {
        let sql = "SELECT EXISTS (SELECT FROM expiry.workers
                       WHERE database = current_database() AND last_pass IS NOT NULL AND pid IS NOT NULL)
                   AND (SELECT index_state FROM expiry.status) = 'valid'";
        wait_until("a worker", PATIENCE, || self.value::<bool>(sql));
    }

    /// Whether any of the first `orders` is pending.
    pub fn pending(&mut self, orders: i64) -> bool {
        self.value(&format!("SELECT EXISTS (SELECT FROM orders WHERE status = 'pending' AND id <= {orders})"))
    }

    pub fn wait_until_cancelled(&mut self, orders: i64) {
        while self.pending(orders) {
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// From the deadline to the commit of each of the first `orders`, in milliseconds, sorted.
    pub fn lateness_ms(&mut self, orders: i64) -> Vec<f64> {
        let sql = "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - pay_by)::float8 * 1000 AS late
                   FROM orders WHERE status = 'cancelled' AND id <= $1 ORDER BY late";
        let rows = self.client.query(sql, &[&orders]).expect("lateness");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Until no order is left that is due.
    pub fn wait_until_drained(&mut self) {
        let sql = "SELECT NOT EXISTS (SELECT FROM orders WHERE status = 'pending' AND pay_by <= now())";
        wait_until("the backlog to be worked off", PATIENCE, || self.value::<bool>(sql));
    }

    /// Each of so many orders is cancelled once, stock exact; and has one event, if there are events.
    pub fn assert_exact(&mut self, orders: i64, has_events: bool) {
        let cancelled: i64 = self.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
        let restored: i64 = self.value("SELECT (sum(qty) - 100 * 1000000)::bigint FROM stock");
        assert_eq!((cancelled, restored), (orders, orders), "cancelled orders, units of stock");
        if has_events {
            let events = "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'";
            assert_eq!(self.value::<i64>(events), orders, "events");
            assert_eq!(self.value::<i64>("SELECT count(DISTINCT key) FROM expiry.event"), orders, "keys");
        }
    }

    /// From the first commit of a cancellation to the last, by the server's own clock.
    pub fn first_to_last_commit(&mut self) -> Duration {
        let sql = "SELECT extract(epoch FROM max(at) - min(at))::float8 FROM (
                       SELECT pg_xact_commit_timestamp(xmin) AS at FROM orders WHERE status = 'cancelled') c";
        Duration::from_secs_f64(self.value(sql))
    }
}

fn connect(db: &Db) -> Client {
    let mut client = db.connect();
    client.batch_execute("SET statement_timeout = 0").expect("SET");
    client
}
