//! A shop whose policy `orders` is put to the test, beside one that must not notice anything of it.

use std::time::Duration;

use pg_expiry_tests::{Shop, wait_for_value, worker_pids};

pub const SECOND: Duration = Duration::from_secs(1);

/// What the policy on the orders comes to.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    GoesOn,
    /// With this in the reason; and what puts it right.
    Stops(&'static str, &'static [&'static str]),
    IsGone,
}

/// One worker serves two policies, `orders` and `bills`.
pub struct Watched {
    pub shop: Shop,
    pub pid: i32,
    /// The last one; no order has such a number.
    bills: i64,
}

impl Watched {
    /// Both have cancelled a row already, so that the worker has its plans.
    pub fn new() -> Watched {
        let mut shop = Shop::new();
        shop.client
            .batch_execute(
                "CREATE TABLE bills (id bigint PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz);
                 CREATE FUNCTION close_bill(k bigint) RETURNS void LANGUAGE sql AS
                     $$ UPDATE bills SET status = 'closed' WHERE id = k $$;
                 SELECT expiry.create_policy('bills', 'pay_by', $$status = 'pending'$$, 'close_bill')",
            )
            .unwrap();
        shop.wait_for_index();
        let pid = shop.wait_for_worker();
        shop.due(1, Duration::ZERO);
        shop.wait_for_cancelled(1);
        let mut watched = Watched { shop, pid, bills: 1_000_000_000 };
        watched.assert_others_are_served();
        watched
    }

    #[track_caller]
    pub fn execute(&mut self, statements: &[&str]) {
        for sql in statements {
            self.shop.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    }

    /// A bill that becomes due now is closed.
    #[track_caller]
    pub fn assert_others_are_served(&mut self) {
        self.bills += 1;
        let id = self.bills;
        self.execute(&[&format!("INSERT INTO bills VALUES ({id}, 'pending', now())")]);
        let closed = format!("SELECT status FROM bills WHERE id = {id}");
        wait_for_value(&mut self.shop.client, &closed, "closed".to_owned());
    }

    /// Waits until the policy is in this state, for a reason with these words.
    #[track_caller]
    pub fn wait_for_state(&mut self, state: &str, reason: &str) {
        let sql = format!(
            "SELECT state = '{state}' AND coalesce(reason, '') LIKE '%{reason}%' FROM expiry.status WHERE name = 'orders'"
        );
        wait_for_value(&mut self.shop.client, &sql, true);
    }

    /// Nobody was late or lost an attempt, and it is the same worker still.
    #[track_caller]
    pub fn assert_unharmed(&mut self) {
        self.assert_others_are_served();
        assert_eq!(worker_pids(&mut self.shop.client), [self.pid]);
        let counts = "SELECT coalesce(sum(failed), 0)::bigint + (SELECT count(*) FROM expiry.failure) FROM expiry.status";
        let failed = self.shop.value::<i64>(counts);
        let last = "SELECT coalesce(string_agg(last_error::text, '; '), '') FROM expiry.status";
        assert_eq!(failed, 0, "calls that failed, the last with: {}", self.shop.value::<String>(last));
        let late = "SELECT coalesce(max(lateness_max_ms), 0) FROM expiry.status WHERE name = 'bills'";
        let late: f64 = self.shop.value(late);
        assert!(late < 5000.0, "a bill was {late} ms late");
    }

    /// The statements come to this; `due` makes an order due (or tells that there is none), which is
    /// cancelled when `cancelled` says so.
    #[track_caller]
    pub fn assert_comes_to(&mut self, statements: &[&str], outcome: Outcome, due: &str, cancelled: &str) {
        self.execute(statements);
        match outcome {
            Outcome::GoesOn => self.execute(&[due]),
            Outcome::Stops(reason, mends) => {
                self.wait_for_state("stopped", reason);
                self.assert_others_are_served();
                self.execute(mends);
                self.execute(&[due]);
            }
            Outcome::IsGone => {
                wait_for_value(&mut self.shop.client, "SELECT count(*) FROM expiry.policy", 1_i64);
                self.assert_unharmed();
                assert_eq!(self.shop.value::<i64>("SELECT count(*) FROM expiry.binding"), 1);
                return;
            }
        }
        wait_for_value(&mut self.shop.client, cancelled, true);
        self.wait_for_state("active", "");
        self.assert_unharmed();
    }

    /// The policy can be dropped, and then no index of ours is left on any table.
    #[track_caller]
    pub fn assert_leaves_nothing(&mut self) {
        self.execute(&["SELECT expiry.drop_policy(name) FROM expiry.policy"]);
        let left =
            "SELECT coalesce(string_agg(relname, ', '), '') FROM pg_class WHERE relname LIKE '%expiry_idx%'";
        wait_for_value(&mut self.shop.client, left, String::new());
        wait_for_value(&mut self.shop.client, "SELECT count(*) FROM expiry.binding", 0_i64);
    }
}
