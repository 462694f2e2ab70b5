//! The shop on a server of its own, set up as one would for work: it syncs, and commits are timed.

use std::fs::OpenOptions;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::postgres::types::FromSqlOwned;
use pg_expiry_tests::{Cluster, Db, wait_until};

const SCHEMA: &str = include_str!("../shop.sql");
/// Long work says that it goes on that often.
const PROGRESS: Duration = Duration::from_secs(10);

/// Ids of orders that are pending and not due begin here; those that are to be cancelled have smaller ones.
pub const FAR: i64 = 100_000_000;
/// Deadlines of the former.
pub const FAR_DEADLINE: &str = "now() + interval '1 day' + (id - 100000000) * interval '1 ms'";
/// Deadlines of a backlog, of as many as 86 million.
pub const OVERDUE: &str = "now() - interval '1 day' + id * interval '1 ms'";

/// The server that all contests share.
pub fn cluster(with_pg_cron: bool) -> Cluster {
    let preload = if with_pg_cron { "pg_expiry, pg_cron" } else { "pg_expiry" };
    let cluster = [
        ("shared_preload_libraries", preload),
        ("fsync", "on"),
        ("shared_buffers", "1GB"),
        ("max_wal_size", "16GB"),
        ("min_wal_size", "2GB"),
        ("checkpoint_timeout", "1h"),
        ("track_commit_timestamp", "on"),
        ("autovacuum", "off"),
    ]
    .into_iter()
    .fold(Cluster::builder(), |builder, (name, value)| builder.setting(name, value))
    .stopped();
    if with_pg_cron {
        // Where it connects to is known only now.
        let conf = OpenOptions::new().append(true).open(cluster.data().join("postgresql.conf"));
        let host = cluster.endpoint().host().display();
        writeln!(conf.expect("postgresql.conf"), "cron.host = '{host}'").expect("postgresql.conf");
    }
    cluster.start_again();
    lay_in_wal(&cluster);
    cluster
}

/// Files of WAL to be used again, as a server has them that has been running for a while: to make one holds up
/// every commit for some milliseconds.
fn lay_in_wal(cluster: &Cluster) {
    const FILES: usize = 128; // the 2 GB
    let mut client = cluster.connect("postgres");
    for _ in 0..FILES {
        client
            .batch_execute("SELECT pg_logical_emit_message(false, '', ''); SELECT pg_switch_wal()")
            .expect("WAL");
    }
    client.batch_execute("CHECKPOINT").expect("a checkpoint");
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
        self.run("TRUNCATE orders, expiry.event, told");
        self.run("UPDATE stock SET qty = 1000000");
        self.add(1, orders, pay_by);
        self.tidy();
    }

    /// Orders with ids from `first` on. Loading them is not what is measured: no foreign key is checked.
    pub fn add(&mut self, first: i64, orders: i64, pay_by: &str) {
        self.run(&format!(
            "BEGIN; SET LOCAL session_replication_role = replica;
             INSERT INTO orders (id, sku, pay_by) SELECT id, 1 + id % 100, {pay_by}
             FROM generate_series({first}::bigint, {first} + {orders} - 1) id; COMMIT"
        ));
    }

    /// Only the orders that are far from due are left, and what was cancelled is forgotten.
    pub fn keep_far_orders(&mut self) {
        self.run(&format!("DELETE FROM orders WHERE id < {FAR}"));
        self.run("TRUNCATE expiry.event");
        self.run("UPDATE stock SET qty = 1000000");
        self.run("VACUUM FULL stock");
        self.tidy();
    }

    /// Nothing is left to be done for what was loaded. The server's autovacuum is off, so that it is done now.
    pub fn tidy(&mut self) {
        self.run("VACUUM (ANALYZE)");
        self.run("CHECKPOINT");
    }

    pub fn create_policy(&mut self, function: &str) {
        self.create_policy_with(function, "");
    }

    /// `options` are further arguments in SQL, or nothing.
    pub fn create_policy_with(&mut self, function: &str, options: &str) {
        let options = if options.is_empty() { String::new() } else { format!(", {options}") };
        self.run(&format!(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => '{function}'{options})"
        ));
    }

    pub fn drop_policy(&mut self) {
        self.run("SELECT expiry.drop_policy('orders')");
    }

    /// A worker has looked at the policy and will again.
    pub fn wait_for_worker(&mut self) -> i32 {
        let sql = "SELECT pid FROM expiry.workers
                   WHERE database = current_database() AND last_pass IS NOT NULL AND pid IS NOT NULL
                       AND (SELECT index_state FROM expiry.status) = 'valid'";
        wait_until("a worker", Duration::MAX, || {
            let row = self.client.query_opt(sql, &[]).expect("expiry.workers");
            row.map(|row| row.get::<_, i32>(0))
        })
    }

    /// Until none of the first `orders` is pending; `check` panics when that will never be.
    pub fn wait_until_cancelled(&mut self, orders: i64, mut check: impl FnMut()) {
        let any = format!(
            "SELECT EXISTS (SELECT FROM orders WHERE status = 'pending' AND id BETWEEN 1 AND {orders})"
        );
        let mut said = Instant::now();
        // The last one usually is the last; looking at it alone costs the server nothing.
        let last = format!("SELECT status = 'pending' FROM orders WHERE id = {orders}");
        while self.value::<bool>(&last) || self.value::<bool>(&any) {
            check();
            if said.elapsed() > PROGRESS {
                said = Instant::now();
                let count = "SELECT count(*) FROM orders WHERE status = 'pending'";
                let left: i64 = self.value(&format!("{count} AND id BETWEEN 1 AND {orders}"));
                println!("    {left} of {orders} orders are pending still");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// From the deadline to the commit of each of the first `orders`, in milliseconds, sorted.
    pub fn lateness_ms(&mut self, orders: i64) -> Vec<f64> {
        let sql = "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - pay_by)::float8 * 1000 AS late
                   FROM orders WHERE status = 'cancelled' AND id BETWEEN 1 AND $1 ORDER BY late";
        let rows = self.client.query(sql, &[&orders]).expect("lateness");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Each of so many orders is cancelled once, stock exact; and has one event, if there are events.
    pub fn assert_exact(&mut self, orders: i64, has_events: bool) {
        let cancelled: i64 = self.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
        let restored: i64 = self.value("SELECT (sum(qty - 1000000))::bigint FROM stock");
        assert_eq!((cancelled, restored), (orders, orders), "cancelled orders, units of stock");
        let wrong = "SELECT count(*) FROM stock s
                     LEFT JOIN (SELECT sku, count(*) FROM orders WHERE status = 'cancelled' GROUP BY sku) c USING (sku)
                     WHERE s.qty - 1000000 <> coalesce(c.count, 0)";
        assert_eq!(self.value::<i64>(wrong), 0, "stock of single articles");
        if has_events {
            let events = "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'";
            assert_eq!(self.value::<i64>(events), orders, "events");
            assert_eq!(self.value::<i64>("SELECT count(DISTINCT key) FROM expiry.event"), orders, "keys");
        }
    }

    /// Orders a second from the first commit of cancellations to the last, by the server's own clock. What the
    /// first one cancelled is not counted: it took time before. If there was but one, of the time that all `took`.
    pub fn cancelled_per_s(&mut self, took: Duration) -> f64 {
        let rate = "SELECT count(*) FILTER (WHERE at > first) / nullif(extract(epoch FROM max(at) - max(first)), 0)
                    FROM (SELECT at, min(at) OVER () AS first FROM
                        (SELECT pg_xact_commit_timestamp(xmin) AS at FROM orders WHERE status = 'cancelled') c) c";
        let rate: Option<f64> = self.value(&format!("SELECT ({rate})::float8"));
        rate.unwrap_or_else(|| {
            let orders: i64 = self.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
            orders as f64 / took.as_secs_f64()
        })
    }

    /// How many orders were cancelled, so many seconds after the first.
    pub fn progress(&mut self) -> Vec<(f64, f64)> {
        const POINTS: usize = 200;
        let sql = "SELECT extract(epoch FROM at - min(at) OVER ())::float8, sum(n) OVER (ORDER BY at)::float8
                   FROM (SELECT pg_xact_commit_timestamp(xmin) AS at, count(*) AS n
                         FROM orders WHERE status = 'cancelled' GROUP BY 1) c ORDER BY 1";
        let rows = self.client.query(sql, &[]).expect("progress");
        let points: Vec<_> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let mut thinned: Vec<_> =
            points.iter().copied().step_by(points.len().div_ceil(POINTS).max(1)).collect();
        thinned.extend(points.last().copied());
        thinned
    }
}

fn connect(db: &Db) -> Client {
    let mut client = db.connect();
    client.batch_execute("SET statement_timeout = 0").expect("SET");
    client
}
