//! R39: a listener that sits in a transaction keeps the cluster's notification queue from being emptied. All
//! is cancelled nonetheless, nobody's commit fails, and the listeners are told when they can catch up.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::serde_json::{Value, json};
use pg_expiry_tests::{Cluster, Heard, Listener, Shop, Signal, signal, wait_until, worker_pids};

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// 256 KB of the queue's 8 GB count as half: see `pg/debug_point.rs`.
const SCALE: &str = "16384";

struct Stuck {
    cluster: Cluster,
    shop: Shop,
    listener: Listener,
    stuck: Client,
}

impl Stuck {
    fn new(batch_size: i32, settings: &[(&str, &str)]) -> Stuck {
        let builder =
            settings.iter().fold(Cluster::builder(), |builder, (name, value)| builder.setting(name, value));
        let cluster = builder.start();
        let mut shop = Shop::in_database(cluster.create_database());
        shop.client
            .batch_execute(
                "CREATE FUNCTION cancel_orders(ids bigint[]) RETURNS void LANGUAGE sql AS $$
                     UPDATE stock SET qty = qty + cardinality(ids) WHERE sku = 1;
                     UPDATE orders SET status = 'cancelled' WHERE id = ANY (ids) $$",
            )
            .unwrap();
        shop.db.create_extension();
        shop.create_policy(&format!(", batch_size => {batch_size}"));
        shop.client
            .batch_execute(
                "SELECT expiry.alter_policy('orders', cancel_function => 'cancel_orders(bigint[])')",
            )
            .unwrap();
        shop.wait_for_index();
        let listener = shop.listen();
        let mut stuck = shop.db.connect();
        // In a transaction of its own: it listens from the commit on.
        stuck.batch_execute("LISTEN order_expired").unwrap();
        stuck.batch_execute("BEGIN; SELECT 1").unwrap();
        Stuck { cluster, shop, listener, stuck }
    }

    fn status<T: pg_expiry_tests::postgres::types::FromSqlOwned>(&mut self, column: &str) -> T {
        self.shop.value(&format!("SELECT {column} FROM expiry.status"))
    }

    /// Orders expire and others are placed and paid, until all that are due are cancelled.
    fn expire(&mut self, ids: std::ops::RangeInclusive<i64>, patience: Duration) {
        let last = *ids.end();
        self.shop.fill(ids, "now()");
        // The orders last: a look at a million of them, again and again, would be most of the work.
        let seen = "SELECT coalesce(max(id), 0) FROM expiry.event";
        let due = "SELECT count(*) FROM orders WHERE status = 'pending'";
        let mut notifier = self.shop.db.connect();
        let mut placed = self.shop.value::<i64>("SELECT coalesce(-min(id), 0) FROM orders WHERE id < 0");
        wait_until("all to be cancelled", patience, || {
            // Somebody else's commits, also of notifications: so few that the other half of the queue holds them.
            if placed < 1000 {
                notifier.batch_execute("NOTIFY somebody_elses").unwrap();
            }
            placed += 1;
            notifier
                .execute("INSERT INTO orders (id, status) VALUES (-$1::bigint, 'paid')", &[&placed])
                .unwrap();
            match self.shop.value::<i64>(seen) {
                seen if seen < last => Err(seen - last),
                _ => match self.shop.value::<i64>(due) {
                    0 => Ok(()),
                    left => Err(left),
                },
            }
        });
        let books = "SELECT (SELECT count(*) FROM orders WHERE status = 'cancelled') = $1 AND (SELECT qty - 1000000 FROM stock) = $1
                         AND (SELECT count(*) FROM expiry.event) = $1 AND (SELECT count(DISTINCT key) FROM expiry.event) = $1";
        let row = self.shop.client.query_one(books, &[&last]).unwrap();
        assert!(row.get::<_, bool>(0), "the books do not balance");
        assert_eq!(self.shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    }

    fn warnings(&self) -> usize {
        self.cluster
            .log()
            .lines()
            .filter(|line| line.contains("WARNING") && line.contains("withheld"))
            .count()
    }

    /// The stuck listener comes to; what the others hear.
    fn release(&mut self) -> Vec<Heard> {
        self.stuck.batch_execute("ROLLBACK; UNLISTEN *").unwrap();
        let resync = |heard: &[Heard]| heard.iter().any(|heard| heard.json["kind"] == "resync");
        let mut heard = Vec::new();
        wait_until("the resync", PATIENCE, || {
            heard.extend(self.listener.drain());
            resync(&heard)
        });
        heard
    }

    /// All that was not pushed is found by reading from where the resync says.
    fn assert_caught_up(&mut self, heard: &[Heard], warnings: usize) {
        let pushed: Vec<i64> = heard.iter().filter_map(|heard| heard.json["id"].as_i64()).collect();
        let resyncs: Vec<&Value> =
            heard.iter().map(|heard| &heard.json).filter(|json| json["kind"] == "resync").collect();
        assert_eq!(resyncs.len(), 1, "{resyncs:?}");
        let after = resyncs[0]["after"].as_i64().unwrap();
        assert_eq!(*resyncs[0], json!({ "v": 1, "kind": "resync", "policy": "orders", "after": after }));
        let rows =
            self.shop.client.query("SELECT id FROM expiry.events_after($1, 10000000)", &[&after]).unwrap();
        let caught_up: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let rows = self.shop.client.query("SELECT id FROM expiry.event ORDER BY id", &[]).unwrap();
        let all: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!([pushed, caught_up.clone()].concat(), all);
        assert_eq!(self.status::<i64>("withheld_notifications"), i64::try_from(caught_up.len()).unwrap());
        assert!(!caught_up.is_empty());
        assert_eq!(self.warnings(), warnings);
        let noted = "SELECT count(*) FROM expiry.progress WHERE withheld_after IS NOT NULL";
        assert_eq!(self.shop.value::<i64>(noted), 0);
        // And they go on.
        let next = all.last().unwrap() + 1_000_000;
        self.shop.fill(next..=next, "now()");
        assert_eq!(self.listener.next(10 * SECOND).json["key"], json!({ "id": next.to_string() }));
    }
}

#[test]
fn stuck_listener_harms_nobody() {
    let mut stuck = Stuck::new(200, &[("pg_expiry_debug.queue_scale", SCALE)]);
    stuck.expire(1..=3000, PATIENCE);
    let withheld: i64 = stuck.status("withheld_notifications");
    assert!((500..3000).contains(&withheld), "{withheld}");
    let heard = stuck.release();
    stuck.assert_caught_up(&heard, 1);
}

/// The worker that has withheld is gone; the next one tells the listeners nonetheless, and of all of it.
#[test]
fn resync_outlives_the_worker() {
    let mut stuck = Stuck::new(200, &[("pg_expiry_debug.queue_scale", SCALE)]);
    stuck.expire(1..=3000, PATIENCE);
    // Hit right after a batch, before it can have written any statistics.
    let [pid] = worker_pids(&mut stuck.shop.client)[..] else { panic!("one worker") };
    stuck.shop.fill(3001..=3001, "now()");
    wait_until("the event", PATIENCE, || {
        stuck.shop.value::<i64>("SELECT count(*) FROM expiry.event") == 3001
    });
    signal(pid, Signal::TERM);
    wait_until("another worker", PATIENCE, || {
        let pids = worker_pids(&mut stuck.shop.client);
        pids.len() == 1 && pids[0] != pid
    });
    stuck.expire(3002..=3500, PATIENCE);
    let heard = stuck.release();
    stuck.assert_caught_up(&heard, 1);
}

/// A session that runs a pass by hand withholds as well; the worker tells.
#[test]
fn run_by_hand_withholds_too() {
    let mut stuck = Stuck::new(200, &[("pg_expiry_debug.queue_scale", SCALE)]);
    stuck.expire(1..=3000, PATIENCE);
    stuck.shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    stuck.shop.fill(3001..=3100, "now()");
    stuck.shop.client.batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(stuck.shop.value::<i64>("SELECT count(*) FROM expiry.event"), 3100);
    stuck.shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    let heard = stuck.release();
    stuck.assert_caught_up(&heard, 1);
}

/// The queue really full: PostgreSQL 17 can make it small. Long: 1,000,000 orders with PG_EXPIRY_LONG set.
#[test]
fn full_queue_harms_nobody() {
    let version: i32 = {
        let sql = "SELECT current_setting('server_version_num')::int";
        pg_expiry_tests::shared_cluster().connect("postgres").query_one(sql, &[]).unwrap().get(0)
    };
    let is_long = std::env::var_os("PG_EXPIRY_LONG").is_some();
    let orders = if is_long { 1_000_000 } else { 3000 };
    let small = match version {
        170_000.. => ("max_notify_queue_pages", "64"),
        _ => {
            println!(
                "skipped in part: max_notify_queue_pages is of PostgreSQL 17, a scaled queue stands for it"
            );
            ("pg_expiry_debug.queue_scale", SCALE)
        }
    };
    let mut stuck = Stuck::new(if is_long { 1000 } else { 200 }, &[small]);
    stuck.expire(1..=orders, if is_long { 20 * PATIENCE } else { PATIENCE });
    let heard = stuck.release();
    stuck.assert_caught_up(&heard, 1);
}
