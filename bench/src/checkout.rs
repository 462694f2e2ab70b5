//! What checkouts notice: how many orders a second come in with a policy and without, or beside other schemes, and
//! how long a checkout takes while a backlog of the same stock drains.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::Cluster;
use pg_expiry_tests::postgres::Client;

use crate::contest::{Contest, Part, Target, percentile};
use crate::peers::Peer;
use crate::pgbench::Pgbench;
use crate::scale::Scale;
use crate::shop::{OVERDUE, Shop};

/// What a checkout does for those who are to cancel the order.
pub struct Scheme {
    /// Whether they need the index on the deadline.
    pub is_indexed: bool,
    /// Inserts an order of article $1, and tells them, as far as SQL can; gives its id and deadline in seconds.
    pub sql: String,
    /// Makes what tells those that are not in the database, after the commit: of each client its own.
    pub teller: Option<Box<dyn Fn() -> Teller>>,
}

/// Is given id and deadline.
pub type Teller = Box<dyn FnMut(i64, f64) + Send>;

const INSERT: &str = "INSERT INTO orders (id, sku, pay_by)
    VALUES (nextval('order_id'), $1, now() + interval '15 min')";

impl Scheme {
    /// The table alone.
    pub fn bare() -> Scheme {
        let sql = format!("{INSERT} RETURNING id, extract(epoch FROM pay_by)::float8");
        Scheme { is_indexed: false, sql, teller: None }
    }

    /// The table and the index on its deadline.
    pub fn indexed() -> Scheme {
        Scheme { is_indexed: true, ..Scheme::bare() }
    }

    /// The table, and a job in a queue of the same database: SQL that reads `new (id, pay_by)`.
    pub fn with_job(job: &str) -> Scheme {
        let sql = format!(
            "WITH new AS ({INSERT} RETURNING id, pay_by), job AS ({job})
             SELECT id, extract(epoch FROM pay_by)::float8 FROM new, job"
        );
        Scheme { is_indexed: false, sql, teller: None }
    }

    /// The table, and a message to another server.
    pub fn with_message(teller: impl Fn() -> Teller + 'static) -> Scheme {
        Scheme { teller: Some(Box::new(teller)), ..Scheme::bare() }
    }
}

/// Orders a second of pgbench.
pub fn run(cluster: &Cluster, shop: &mut Shop, scale: &Scale) -> Part {
    const NAMES: [&str; 2] = ["with a policy", "the same table and index, no policy"];
    let mut contest = Contest::new("checkouts", "orders/s", NAMES);
    for _ in 0..scale.rounds {
        for place in 0..NAMES.len() {
            shop.fill(0, "now()");
            let has_policy = place == 0;
            if has_policy {
                shop.create_policy("cancel_order(bigint)");
                shop.wait_for_worker();
            }
            contest.push(place, Pgbench::start(cluster, shop, 64, scale.checkout_s).tps());
            if has_policy {
                shop.drop_policy();
            }
        }
    }
    Part {
        title: "Checkouts with a policy".into(),
        how: format!(
            "pgbench, 64 clients, {} s: one INSERT of an order that is due in 15 minutes, prepared.",
            scale.checkout_s
        ),
        targets: vec![Target::at_least(0.97, contest.ratio(0, 1), "with a policy, × without")],
        contests: vec![contest],
        ..Part::default()
    }
}

/// Orders a second, when each is also told to those who are to cancel it.
pub fn run_schemes(shop: &mut Shop, peers: &mut [Box<dyn Peer>], scale: &Scale) -> Part {
    const CLIENTS: usize = 16;
    let mut all: Vec<&mut Box<dyn Peer>> = peers.iter_mut().collect();
    // The timer needs nothing: it comes first, to be compared with. pg_cron needs what the poller needs.
    all.retain(|peer| !peer.name().starts_with("pg_cron"));
    all.swap(0, 1);
    let name = |peer: &dyn Peer| match peer.name() {
        "timer in memory" => "the table alone (timer in memory)".to_owned(),
        "pg_expiry" => "an index and a policy (pg_expiry)".into(),
        "poller, each second" => "an index (poller, pg_cron)".into(),
        name => format!("{name}: {}", if peer.scheme().teller.is_some() { "a message" } else { "a job" }),
    };
    let mut contest = Contest::new("checkouts", "orders/s", all.iter().map(|peer| name(peer.as_ref())));
    for _ in 0..scale.rounds {
        for (place, peer) in all.iter_mut().enumerate() {
            shop.fill(0, "now()");
            let scheme = peer.scheme();
            if !scheme.is_indexed {
                shop.run("DROP INDEX orders_deadline");
            }
            peer.start(shop);
            contest.push(place, orders_per_s(shop, &scheme, CLIENTS, Duration::from_secs(scale.scheme_s)));
            peer.stop(shop);
            peer.forget(shop);
            if !scheme.is_indexed {
                shop.run("CREATE INDEX orders_deadline ON orders (pay_by) WHERE status = 'pending'");
            }
        }
    }
    Part {
        title: "What checkout keeps, scheme by scheme".into(),
        how: format!(
            "{CLIENTS} clients insert orders for {} s, each in one statement, with whatever the scheme needs besides: \
             an index, a job in the same statement, or a message after the commit, which the client waits for (Redis: \
             the reply, RabbitMQ: the publisher confirm). The worker is running, and nothing becomes due.",
            scale.scheme_s
        ),
        notes: vec![
            "A job in the same transaction is there if and only if the order is. A message after the commit may be \
             lost with the client, so the table has to be searched for lost orders now and then, by an index that is \
             not counted here. The timer in memory has to be told as well, if it is not in the process that checks \
             out; that is not counted either."
                .into(),
        ],
        contests: vec![contest],
        ..Part::default()
    }
}

fn orders_per_s(shop: &Shop, scheme: &Scheme, clients: usize, time: Duration) -> f64 {
    let clients: Vec<_> = (0..clients).map(|_| shop.connect()).collect();
    let tellers: Vec<Option<Teller>> =
        clients.iter().map(|_| scheme.teller.as_ref().map(|make| make())).collect();
    let (sql, begun) = (scheme.sql.as_str(), Instant::now());
    let orders: usize = thread::scope(|scope| {
        let insert = |(place, (mut client, mut tell)): (usize, (Client, Option<Teller>))| {
            scope.spawn(move || {
                let statement = client.prepare(sql).expect("INSERT");
                let mut orders = 0;
                while begun.elapsed() < time {
                    let sku = i32::try_from((place * 7 + orders) % 100 + 1).expect("small");
                    let order = client.query_one(&statement, &[&sku]).expect("an order");
                    if let Some(tell) = &mut tell {
                        tell(order.get(0), order.get(1));
                    }
                    orders += 1;
                }
                orders
            })
        };
        let all: Vec<_> = clients.into_iter().zip(tellers).enumerate().map(insert).collect();
        all.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    orders as f64 / begun.elapsed().as_secs_f64()
}

/// The 99th percentile of checkouts that take from the stock, in milliseconds.
pub fn run_beside_a_drain(shop: &mut Shop, scale: &Scale) -> Part {
    // With the cancel function of the drain, and how far the customers' articles are from those of the drain.
    const BESIDE: [(&str, Option<&str>, i32); 4] = [
        ("nothing else", None, 0),
        ("beside a drain, function for a batch", Some("cancel_orders(bigint[])"), 0),
        ("beside a drain, function for an order", Some("cancel_order(bigint)"), 0),
        ("beside a drain of other articles, function for an order", Some("cancel_order(bigint)"), 100),
    ];
    let names = BESIDE.map(|(name, ..)| name);
    let mut contests =
        [("p50", 50.0), ("p99", 99.0)].map(|(title, percent)| (Contest::new(title, "ms", names), percent));
    for _ in 0..scale.rounds {
        for (place, (_, function, other_articles)) in BESIDE.into_iter().enumerate() {
            shop.fill(scale.backlog_beside_checkouts, OVERDUE);
            let is_over = AtomicBool::new(false);
            let customers: Vec<Client> = (0..4).map(|_| shop.connect()).collect();
            let mut took: Vec<f64> = thread::scope(|scope| {
                let check_out = |client| scope.spawn(|| check_out(client, other_articles, &is_over));
                let customers: Vec<_> = customers.into_iter().map(check_out).collect();
                match function {
                    Some(function) => {
                        shop.create_policy(function);
                        shop.wait_until_cancelled(scale.backlog_beside_checkouts, || ());
                        shop.drop_policy();
                    }
                    None => thread::sleep(Duration::from_secs(scale.checkout_s)),
                }
                is_over.store(true, Ordering::Relaxed);
                customers.into_iter().flat_map(|customer| customer.join().expect("a customer")).collect()
            });
            took.sort_by(f64::total_cmp);
            for (contest, percent) in &mut contests {
                contest.push(place, percentile(&took, *percent));
            }
        }
    }
    let contests = contests.map(|(contest, _)| contest);
    let ratio = |place| contests[1].ratio(place, 0);
    let targets = vec![
        Target::at_most(2.0, ratio(1), "p99 beside a drain with the function for a batch, × without a drain"),
        Target::at_most(
            2.0,
            ratio(2),
            "p99 beside a drain with the function for an order, × without a drain",
        ),
    ];
    Part {
        title: "Checkouts beside a drain".into(),
        how: format!(
            "{} overdue orders of 100 articles are cancelled, while four customers take from the stock of the same \
             articles and insert an order, each in one transaction, with 5 ms between two of them. Customers of \
             other articles wait for no lock: what they notice is that processors and disk have more to do.",
            scale.backlog_beside_checkouts
        ),
        contests: contests.into(),
        targets,
        ..Part::default()
    }
}

/// A customer every few milliseconds; how long each checkout took, in milliseconds.
fn check_out(mut client: Client, other_articles: i32, is_over: &AtomicBool) -> Vec<f64> {
    const THINKS: Duration = Duration::from_millis(5);
    let mut took = Vec::new();
    let mut sku = 0;
    while !is_over.load(Ordering::Relaxed) {
        sku = sku % 100 + 1;
        let begun = Instant::now();
        let mut tx = client.transaction().expect("BEGIN");
        let article = sku + other_articles;
        tx.execute("UPDATE stock SET qty = qty - 1 WHERE sku = $1", &[&article]).expect("stock");
        let order =
            "INSERT INTO orders (id, sku, pay_by) VALUES (-nextval('order_id'), $1, now() + interval '1 h')";
        tx.execute(order, &[&article]).expect("an order");
        tx.commit().expect("COMMIT");
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        thread::sleep(THINKS);
    }
    took
}
