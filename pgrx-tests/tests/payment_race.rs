//! Payments race expiry at the deadline. Whoever commits first wins, and no order is lost, paid and
//! cancelled, or cancelled twice.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::{Client, Error};
use pg_expiry_tests::{Db, sqlstate, wait_until};

const CUSTOMERS: usize = 12;
const STOCK: i64 = 1_000_000;

/// Orders of one race; PG_EXPIRY_RACE_ORDERS for long ones.
fn orders() -> i64 {
    env::var("PG_EXPIRY_RACE_ORDERS").map_or(1_000, |n| n.parse().expect("PG_EXPIRY_RACE_ORDERS"))
}

/// How a customer goes about it. Each comes near the deadline, a few milliseconds before or after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Customer {
    /// SELECT FOR UPDATE, and thinks until the deadline is over.
    LocksEarly,
    /// SELECT FOR UPDATE at the deadline, and pays if the order is still pending.
    LocksLate,
    /// Like LocksEarly, but the card is refused.
    RollsBack,
    /// The payment row (a foreign key to the order) first, the order's status last.
    InsertsFirst,
    /// Like InsertsFirst, but the card is refused.
    InsertsAndRollsBack,
    /// UPDATE ... WHERE status = 'pending'.
    Guards,
    /// The shop's own cancel button: a guarded UPDATE, and the stock goes back.
    PressesCancel,
}

const KINDS: [Customer; 7] = [
    Customer::LocksEarly,
    Customer::LocksLate,
    Customer::RollsBack,
    Customer::InsertsFirst,
    Customer::InsertsAndRollsBack,
    Customer::Guards,
    Customer::PressesCancel,
];

/// By how much customers of each kind come later than at the deadline, in microseconds. After one that was
/// too late the next comes earlier, and after one that was not, later: so it is close, however busy the machine.
#[derive(Default)]
struct Habits([AtomicI64; KINDS.len()]);

impl Habits {
    /// Seconds.
    fn of(&self, customer: Customer) -> f64 {
        self.0[customer as usize].load(Ordering::Relaxed) as f64 / 1e6
    }

    fn after(&self, customer: Customer, told: Told) {
        let change = if told == Told::TooLate { -2000 } else { 1000 };
        self.0[customer as usize].fetch_add(change, Ordering::Relaxed);
    }
}

/// What the customer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Paid,
    CancelledByHand,
    TooLate,
    GaveUp,
}

struct Visit {
    id: i64,
    customer: Customer,
    told: Told,
}

/// One shop a schema, each with an owner and so a worker of its own; all take from one stock.
struct Race {
    db: Db,
    shops: &'static [&'static str],
}

impl Race {
    /// `settings`: of the database, besides a short lookahead.
    fn new(shops: &'static [&'static str], settings: &[&str]) -> Race {
        let db = Db::with_extension();
        let name = &db.name;
        let mut client = db.connect();
        for setting in [&["pg_expiry.lookahead = '10ms'"], settings].concat() {
            client.batch_execute(&format!("ALTER DATABASE {name} SET {setting}")).unwrap();
        }
        client.batch_execute("CREATE TABLE stock (sku int PRIMARY KEY, qty int NOT NULL)").unwrap();
        client.execute("INSERT INTO stock SELECT sku, 1000000 FROM generate_series(0, 9) sku", &[]).unwrap();
        for shop in shops {
            let sql = format!(
                "CREATE ROLE {name}_{shop};
                 GRANT ALL ON stock TO {name}_{shop};
                 CREATE SCHEMA {shop} AUTHORIZATION {name}_{shop};
                 SET search_path = {shop}, public;
                 SET ROLE {name}_{shop};
                 CREATE TABLE orders (
                     id bigint PRIMARY KEY, sku int NOT NULL, status text NOT NULL DEFAULT 'pending',
                     pay_by timestamptz NOT NULL, hold_until timestamptz NOT NULL);
                 CREATE TABLE payment (order_id bigint NOT NULL REFERENCES orders);
                 CREATE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE sql AS $$
                     UPDATE orders SET status = 'cancelled' WHERE id = order_id;
                     UPDATE public.stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
                 $$;
                 SELECT expiry.create_policy('orders', name => '{shop}', deadline => 'pay_by',
                     predicate => $$status = 'pending'$$, cancel_function => 'cancel_order(bigint)')"
            );
            db.connect().batch_execute(&sql).unwrap_or_else(|error| panic!("{error:?}"));
        }
        Race { db, shops }
    }

    /// Customers until all orders are dealt with, `beside` them all the time, then the oracle.
    fn run(&self, mut beside: impl FnMut() + Send) {
        let is_over = AtomicBool::new(false);
        let next_id = AtomicI64::new(0);
        let habits = Habits::default();
        let visits = thread::scope(|scope| {
            let ordering = || self.visit_all(&next_id, &habits);
            let customers: Vec<_> = (0..CUSTOMERS).map(|_| scope.spawn(ordering)).collect();
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    beside();
                }
            });
            let visits = customers.into_iter().map(|customer| customer.join());
            let visits: Result<Vec<_>, _> = visits.collect();
            is_over.store(true, Ordering::Relaxed);
            visits.expect("a customer").into_iter().flatten().collect::<Vec<_>>()
        });
        self.check(&visits);
    }

    fn visit_all(&self, next_id: &AtomicI64, habits: &Habits) -> Vec<Visit> {
        let mut clients: Vec<Client> = self.shops.iter().map(|shop| self.connect(shop)).collect();
        let mut visits = Vec::new();
        loop {
            let id = next_id.fetch_add(1, Ordering::Relaxed);
            if id >= orders() {
                return visits;
            }
            let client = &mut clients[self.shop_of(id)];
            let noise = noise(id);
            let customer = KINDS[(noise % KINDS.len() as u64) as usize];
            let told = visit(client, id, customer, noise, habits.of(customer))
                .unwrap_or_else(|error| panic!("{customer:?}: {error:?}"));
            habits.after(customer, told);
            visits.push(Visit { id, customer, told });
        }
    }

    fn connect(&self, shop: &str) -> Client {
        let mut client = self.db.connect();
        client.batch_execute(&format!("SET search_path = {shop}, public")).unwrap();
        client
    }

    fn shop_of(&self, id: i64) -> usize {
        id as usize % self.shops.len()
    }

    fn check(&self, visits: &[Visit]) {
        let mut client = self.db.connect();
        for shop in self.shops {
            let due = format!("SELECT count(*) FROM {shop}.orders WHERE status = 'pending'");
            wait_until("every order to be paid or cancelled", Duration::from_secs(20), || {
                match client.query_one(&due, &[]).unwrap().get::<_, i64>(0) {
                    0 => Ok(()),
                    left => Err(left),
                }
            });
        }
        let sql = |shop: &&str| {
            format!(
                "SELECT o.id, o.status,
                        (SELECT count(*) FROM expiry.event e
                         WHERE e.kind = 'cancelled' AND e.key = jsonb_build_object('id', o.id::text)),
                        (SELECT count(*) FROM {shop}.payment p WHERE p.order_id = o.id)
                 FROM {shop}.orders o"
            )
        };
        let all = self.shops.iter().map(sql).collect::<Vec<_>>().join(" UNION ALL ");
        let rows = client.query(&format!("{all} ORDER BY 1"), &[]).unwrap();
        assert_eq!(rows.len(), visits.len());
        let mut cancelled = 0;
        for visit in visits {
            let row = &rows[usize::try_from(visit.id).unwrap()];
            let (status, events, payments): (String, i64, i64) = (row.get(1), row.get(2), row.get(3));
            let pays_by_row = matches!(visit.customer, Customer::InsertsFirst);
            let right = match visit.told {
                Told::Paid => ("paid", 0, i64::from(pays_by_row)),
                Told::CancelledByHand => ("cancelled", 0, 0),
                Told::TooLate | Told::GaveUp => ("cancelled", 1, 0),
            };
            let Visit { id, customer, told } = visit;
            let seen = (status.as_str(), events, payments);
            assert_eq!(seen, right, "order {id}, {customer:?} was told {told:?}");
            cancelled += i64::from(status == "cancelled");
        }
        let back = client.query_one("SELECT sum(qty) - 10 * 1000000 FROM stock", &[]).unwrap();
        assert_eq!(back.get::<_, i64>(0), cancelled, "units given back to the stock of {STOCK}");
        let failures = client.query_one("SELECT count(*) FROM expiry.failure", &[]).unwrap();
        assert_eq!(failures.get::<_, i64>(0), 0);
        // Else it was no race.
        for customer in
            [Customer::LocksLate, Customer::InsertsFirst, Customer::Guards, Customer::PressesCancel]
        {
            let told: Vec<Told> = visits.iter().filter(|v| v.customer == customer).map(|v| v.told).collect();
            let late = told.iter().filter(|told| **told == Told::TooLate).count();
            println!("{customer:?}: {late} of {} came too late", told.len());
            assert!(0 < late && late < told.len(), "{customer:?}: {late} of {} came too late", told.len());
        }
    }
}

/// splitmix64: the same customers in every run.
fn noise(id: i64) -> u64 {
    let z = id.cast_unsigned().wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Orders something and then, at its deadline, does what such a customer does; `habit` seconds later.
fn visit(client: &mut Client, id: i64, customer: Customer, noise: u64, habit: f64) -> Result<Told, Error> {
    const ORDER: &str = "INSERT INTO orders (id, sku, pay_by, hold_until)
        VALUES ($1::bigint, $1::bigint % 10, clock_timestamp() + make_interval(secs => $2),
                clock_timestamp() + make_interval(secs => $2 + 0.001))";
    // There must be time to come as early as that.
    let time = 0.015 - habit.min(0.0);
    again_if_not_serializable(|| client.execute(ORDER, &[&id, &time]).map(|_| ()))?;
    // From 4 ms before the deadline to 4 ms after it.
    let nudge = (noise >> 32) as f64 / f64::from(u32::MAX) * 0.008 - 0.004;
    match customer {
        Customer::LocksEarly | Customer::RollsBack => (),
        _ => come_at_the_deadline(client, id, nudge + habit)?,
    }
    again_if_not_serializable(|| {
        let mut tx = client.transaction()?;
        let told = match customer {
            Customer::LocksEarly | Customer::RollsBack => {
                let is_pending = lock(&mut tx, id)?;
                tx.query("SELECT pg_sleep($1)", &[&(time + 0.005 + nudge)])?;
                if is_pending { pay(&mut tx, id)? } else { Told::TooLate }
            }
            Customer::LocksLate => {
                if lock(&mut tx, id)? {
                    pay(&mut tx, id)?
                } else {
                    Told::TooLate
                }
            }
            Customer::InsertsFirst | Customer::InsertsAndRollsBack => {
                tx.execute("INSERT INTO payment VALUES ($1)", &[&id])?;
                tx.query("SELECT pg_sleep(0.002)", &[])?;
                pay(&mut tx, id)?
            }
            Customer::Guards => pay(&mut tx, id)?,
            Customer::PressesCancel => cancel(&mut tx, id)?,
        };
        let is_refused = matches!(customer, Customer::RollsBack | Customer::InsertsAndRollsBack);
        match told {
            Told::Paid if is_refused => tx.rollback().map(|()| Told::GaveUp),
            Told::TooLate => tx.rollback().map(|()| told),
            _ => tx.commit().map(|()| told),
        }
    })
}

/// What every client of a serializable database has to do.
fn again_if_not_serializable<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match attempt() {
            Err(error) if sqlstate(&error) == "40001" => (),
            result => return result,
        }
    }
}

fn come_at_the_deadline(client: &mut Client, id: i64, nudge: f64) -> Result<(), Error> {
    let sleep = "SELECT pg_sleep(extract(epoch FROM pay_by - clock_timestamp())::float8 + $2) FROM orders WHERE id = $1";
    client.query(sleep, &[&id, &nudge]).map(|_| ())
}

fn lock(tx: &mut pg_expiry_tests::postgres::Transaction<'_>, id: i64) -> Result<bool, Error> {
    let row = tx.query_one("SELECT status FROM orders WHERE id = $1 FOR UPDATE", &[&id])?;
    Ok(row.get::<_, &str>(0) == "pending")
}

fn pay(tx: &mut pg_expiry_tests::postgres::Transaction<'_>, id: i64) -> Result<Told, Error> {
    let sql = "UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'pending'";
    Ok(if tx.execute(sql, &[&id])? == 1 { Told::Paid } else { Told::TooLate })
}

fn cancel(tx: &mut pg_expiry_tests::postgres::Transaction<'_>, id: i64) -> Result<Told, Error> {
    let sql = "UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'pending'";
    if tx.execute(sql, &[&id])? == 0 {
        return Ok(Told::TooLate);
    }
    tx.execute("UPDATE stock SET qty = qty + 1 WHERE sku = $1", &[&((id % 10) as i32)])?;
    Ok(Told::CancelledByHand)
}

const NOTHING: fn() = thread::yield_now;

#[test]
fn with_one_worker() {
    Race::new(&["shop"], &[]).run(NOTHING);
}

#[test]
fn with_workers_of_two_owners() {
    Race::new(&["shop", "kiosk"], &[]).run(NOTHING);
}

#[test]
fn with_two_policies_and_passes_by_hand() {
    let race = Race::new(&["shop"], &[]);
    let mut client = race.connect("shop");
    client
        .batch_execute(
            "SELECT expiry.create_policy('orders', name => 'holds', deadline => 'hold_until',
        predicate => $$status = 'pending'$$, cancel_function => 'cancel_order(bigint)')",
        )
        .unwrap();
    race.run(|| client.batch_execute("CALL expiry.run()").unwrap());
}

#[test]
fn with_passes_by_hand_where_serializable_is_the_default() {
    let race = Race::new(&["shop"], &["default_transaction_isolation = 'serializable'"]);
    let mut client = race.connect("shop");
    race.run(|| client.batch_execute("CALL expiry.run('shop')").unwrap());
}
