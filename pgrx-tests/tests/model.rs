//! Anything in any order: orders come, are paid, extended, restored and deleted, functions are replaced, the
//! worker is ended and interrupted, the policy paused. A model in memory knows what must be true.
//!
//! Every history that failed once is kept in `model.regressions` and tried first.

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::time::Duration;

use pg_expiry_tests::{Shop, sqlstate, wait_until, worker_pids};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_ATTEMPTS: i32 = 4;

/// Histories; PG_EXPIRY_MODEL_RUNS for long runs.
fn runs() -> u32 {
    env::var("PG_EXPIRY_MODEL_RUNS").map_or(10, |n| n.parse().expect("PG_EXPIRY_MODEL_RUNS"))
}

/// A deadline, from now.
#[derive(Debug, Clone, Copy)]
enum Due {
    Past,
    Soon,
    Later,
}

/// What the cancel function does to an order that it does not simply cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Raises,
    Declines,
    LeavesDue,
    /// Says that somebody else was in the way, and always does.
    Collides,
}

/// Orders with `id % every == 0` meet the fault.
#[derive(Debug, Clone, Copy)]
struct Function {
    fault: Fault,
    /// 0: no order.
    every: i64,
}

const GOOD: Function = Function { fault: Fault::Raises, every: 0 };

#[derive(Debug, Clone)]
enum Step {
    Order(i64, Due),
    /// Of this order, counted from the first and around.
    Pay(usize),
    Extend(usize, Due),
    Restore(usize, Due),
    Delete(usize),
    Replace(Function),
    Pause,
    Resume,
    RetryAll,
    Terminate,
    Interrupt,
    RunByHand,
    Settle,
}

fn due() -> impl Strategy<Value = Due> {
    prop_oneof![4 => Just(Due::Past), 3 => Just(Due::Soon), 1 => Just(Due::Later)]
}

fn function() -> impl Strategy<Value = Function> {
    let fault = prop_oneof![
        Just(Fault::Raises),
        Just(Fault::Declines),
        Just(Fault::LeavesDue),
        Just(Fault::Collides)
    ];
    prop_oneof![
        2 => Just(GOOD),
        5 => (fault, 1_i64..5).prop_map(|(fault, every)| Function { fault, every }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_i64..12, due()).prop_map(|(count, due)| Step::Order(count, due)),
        4 => any::<usize>().prop_map(Step::Pay),
        3 => (any::<usize>(), due()).prop_map(|(pick, due)| Step::Extend(pick, due)),
        4 => (any::<usize>(), due()).prop_map(|(pick, due)| Step::Restore(pick, due)),
        2 => any::<usize>().prop_map(Step::Delete),
        3 => function().prop_map(Step::Replace),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => Just(Step::RetryAll),
        1 => Just(Step::Terminate),
        2 => Just(Step::Interrupt),
        2 => Just(Step::RunByHand),
        2 => Just(Step::Settle),
    ]
}

/// What is known of an order without asking for it.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    /// It was cancelled as often as this, and then something else became of it.
    cancelled: i64,
    is_deleted: bool,
}

struct Model {
    shop: Shop,
    orders: BTreeMap<i64, Known>,
    function: Function,
    is_paused: bool,
}

impl Model {
    fn new() -> Model {
        let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "50ms")]);
        shop.client.batch_execute("ALTER TABLE orders DROP COLUMN cancelled_at").unwrap();
        let mut model = Model { shop, orders: BTreeMap::new(), function: GOOD, is_paused: false };
        model.replace(GOOD);
        let sql = format!(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'expire(bigint)', retry_delay => '20 ms', max_attempts => {MAX_ATTEMPTS})"
        );
        model.shop.client.batch_execute(&sql).unwrap();
        // A pass by hand does not wait for it.
        model.shop.wait_for_index();
        model
    }

    fn replace(&mut self, function: Function) {
        let Function { fault, every } = function;
        let fault = match fault {
            Fault::Raises => "RAISE 'no' USING ERRCODE = 'SH0P1';",
            Fault::Collides => "RAISE 'not now' USING ERRCODE = 'serialization_failure';",
            Fault::Declines => "RETURN false;",
            Fault::LeavesDue => "RETURN true;",
        };
        // A fault that raises does so when everything else is done.
        let (before, after) = match function.fault {
            Fault::Raises | Fault::Collides => ("", fault),
            Fault::Declines | Fault::LeavesDue => (fault, ""),
        };
        self.function = function;
        self.sql(&format!(
            "CREATE OR REPLACE FUNCTION expire(o_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
             DECLARE meets bool := o_id % nullif({every}, 0) IS NOT DISTINCT FROM 0;
             BEGIN
                 IF meets THEN {before} END IF;
                 UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = o_id);
                 UPDATE orders SET status = 'cancelled' WHERE id = o_id;
                 IF meets THEN {after} END IF;
                 RETURN true;
             END $$"
        ));
    }

    fn sql(&mut self, sql: &str) {
        self.shop.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    fn pick(&self, pick: usize) -> Option<i64> {
        self.orders.keys().nth(pick.checked_rem(self.orders.len())?).copied()
    }

    /// Changes an order if it has this status; whether it had.
    fn change(&mut self, id: i64, from: &str, set: &str) -> bool {
        let sql = format!("UPDATE orders SET {set} WHERE id = $1 AND status = '{from}'");
        self.shop.client.execute(&sql, &[&id]).unwrap_or_else(|error| panic!("{sql}: {error:?}")) == 1
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Order(count, due) => {
                let first = self.orders.len() as i64 + 1;
                self.shop.fill(first..=first + count - 1, due.sql());
                self.orders.extend((first..first + count).map(|id| (id, Known::default())));
            }
            Step::Pay(pick) => {
                if let Some(id) = self.pick(*pick) {
                    self.change(id, "pending", "status = 'paid'");
                }
            }
            Step::Extend(pick, due) => {
                if let Some(id) = self.pick(*pick) {
                    self.change(id, "pending", &format!("pay_by = {}", due.sql()));
                }
            }
            Step::Restore(pick, due) => {
                if let Some(id) = self.pick(*pick)
                    && self.change(id, "cancelled", &format!("status = 'pending', pay_by = {}", due.sql()))
                {
                    self.orders.get_mut(&id).unwrap().cancelled += 1;
                }
            }
            Step::Delete(pick) => {
                if let Some(id) = self.pick(*pick) {
                    let sql = "DELETE FROM orders WHERE id = $1 RETURNING status";
                    let row = self.shop.client.query_opt(sql, &[&id]).unwrap();
                    let known = self.orders.get_mut(&id).unwrap();
                    known.is_deleted = true;
                    let was_cancelled = row.is_some_and(|row| row.get::<_, &str>(0) == "cancelled");
                    known.cancelled += i64::from(was_cancelled);
                }
            }
            Step::Replace(function) => self.replace(*function),
            Step::Pause => self.pause(true),
            Step::Resume => self.pause(false),
            Step::RetryAll => self.sql("SELECT expiry.retry('orders')"),
            Step::Terminate => self.signal("pg_terminate_backend"),
            Step::Interrupt => self.signal("pg_cancel_backend"),
            Step::RunByHand => match self.shop.client.batch_execute("CALL expiry.run('orders')") {
                Err(error) if self.is_paused && sqlstate(&error) == "55000" => (),
                result => result.unwrap(),
            },
            Step::Settle => self.settle(),
        }
    }

    fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
        self.sql(if is_paused { "SELECT expiry.pause('orders')" } else { "SELECT expiry.resume('orders')" });
    }

    fn signal(&mut self, function: &str) {
        for pid in worker_pids(&mut self.shop.client) {
            self.shop.client.execute(&format!("SELECT {function}($1)"), &[&pid]).unwrap();
        }
    }

    /// Waits until every order that is due and pending has a reason to be, and looks at the books.
    fn settle(&mut self) {
        let state = "SELECT coalesce((SELECT state FROM expiry.progress), 'active')";
        wait_until("the orders to settle", PATIENCE, || {
            let is_tripped = self.shop.value::<String>(state) == "tripped";
            let sql = "SELECT o.id, f.attempts FROM orders o
                LEFT JOIN expiry.failure f ON f.key = jsonb_build_object('id', o.id::text)
                WHERE o.status = 'pending' AND o.pay_by <= now() ORDER BY o.id";
            let rows = self.shop.client.query(sql, &[]).unwrap();
            let has_reason = |id: i64, attempts: Option<i32>| {
                let Function { fault, every } = self.function;
                match fault {
                    _ if self.is_paused || attempts >= Some(MAX_ATTEMPTS) => true,
                    _ if every == 0 || id % every != 0 => false,
                    Fault::Raises | Fault::LeavesDue => attempts.is_some() || is_tripped,
                    Fault::Declines | Fault::Collides => true,
                }
            };
            let left = rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, Option<i32>>(1)));
            let left: Vec<_> = left.filter(|(id, attempts)| !has_reason(*id, *attempts)).collect();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        self.check_books();
    }

    /// Each cancellation has one event and one unit of stock, and nothing else has.
    fn check_books(&mut self) {
        let sql = "SELECT k.id, coalesce(o.status, 'deleted'),
                (SELECT count(*) FROM expiry.event e
                 WHERE e.kind = 'cancelled' AND e.key = jsonb_build_object('id', k.id::text)),
                (SELECT qty - 1000000::bigint FROM stock)
            FROM unnest($1::bigint[]) k(id) LEFT JOIN orders o USING (id)";
        let ids: Vec<i64> = self.orders.keys().copied().collect();
        let rows = self.shop.client.query(sql, &[&ids]).unwrap();
        let mut cancelled = 0;
        for row in &rows {
            let (id, status, events): (i64, String, i64) = (row.get(0), row.get(1), row.get(2));
            let known = self.orders[&id];
            assert_eq!(status == "deleted", known.is_deleted, "order {id} is {status}");
            let expected = known.cancelled + i64::from(status == "cancelled");
            assert_eq!(events, expected, "events of order {id}, which is {status} now, {known:?}");
            cancelled += events;
        }
        if let Some(row) = rows.first() {
            assert_eq!(row.get::<_, i64>(3), cancelled, "units given back to stock");
        }
    }

    /// With a good function and nobody in the way, all that is due is cancelled and no failure is left.
    fn finish(&mut self) {
        self.replace(GOOD);
        self.pause(false);
        self.sql("SELECT expiry.retry('orders')");
        self.settle();
        wait_until("all failures to be forgotten", PATIENCE, || {
            // A retry just now may have been too early for a row that failed at the same moment.
            self.sql("SELECT expiry.retry('orders')");
            match self.shop.value::<i64>("SELECT count(*) FROM expiry.failure") {
                0 => Ok(()),
                left => Err(left),
            }
        });
        self.settle();
        let due = "SELECT id FROM orders WHERE status = 'pending' AND pay_by <= now() - interval '1 s'";
        let due = self.shop.client.query(due, &[]).unwrap();
        let due: HashSet<i64> = due.iter().map(|row| row.get(0)).collect();
        assert!(due.is_empty(), "still due: {due:?}");
    }
}

impl Due {
    fn sql(self) -> &'static str {
        match self {
            Due::Past => "now() - interval '1 min'",
            Due::Soon => "now() + interval '100 ms'",
            Due::Later => "now() + interval '1 h'",
        }
    }
}

#[test]
fn whatever_happens_the_books_are_right() {
    let kept = FileFailurePersistence::Direct("tests/model.regressions");
    let config = ProptestConfig {
        cases: runs(),
        failure_persistence: Some(Box::new(kept)),
        max_shrink_iters: 60,
        ..ProptestConfig::default()
    };
    let histories = prop::collection::vec(step(), 10..50);
    let result = TestRunner::new(config).run(&histories, |history| {
        let mut model = Model::new();
        for step in &history {
            model.take(step);
        }
        model.settle();
        model.finish();
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
