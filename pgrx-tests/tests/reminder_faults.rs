//! Reminders when things go wrong: each is given once, whatever ends in the middle of it.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, DebugPoint, Mode, Shop, Signal, signal, wait_for_value, wait_until};

use super::reminders::{reminders, shop, wait_for_later, wait_for_reminders, wait_for_reminders_of};

const PATIENCE: Duration = Duration::from_secs(30);

/// A shop on a server of its own.
struct Lone {
    cluster: Cluster,
    shop: Shop,
}

impl Lone {
    fn new(more: &str) -> Lone {
        let cluster = Cluster::start();
        let mut shop = Shop::in_database(cluster.create_database());
        shop.db.create_extension();
        shop.create_policy(more);
        wait_for_reminders(&mut shop);
        shop.wait_for_index();
        Lone { cluster, shop }
    }

    /// After the server has been down.
    fn reconnect(&mut self) {
        self.shop.client = wait_until("the server to be back", PATIENCE, || {
            self.shop.db.endpoint.try_connect(&self.shop.db.name, "postgres")
        });
    }
}

/// Holds whoever is about to commit reminders; ends with the session.
fn hold(shop: &Shop) -> Client {
    let mut holder = shop.db.connect();
    DebugPoint::Reminded.hold(&mut holder);
    holder
}

#[track_caller]
fn wait_for_held(shop: &mut Shop) -> i32 {
    let held = format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND {}",
        DebugPoint::Reminded.sign()
    );
    wait_until("a process that is about to commit reminders", PATIENCE, || {
        shop.client.query_opt(&held, &[]).unwrap().map(|row| row.get(0))
    })
}

/// Event, notification and what we note of it commit together, whatever ends the worker in between: at the first
/// batch of many rows with one and the same deadline, and somewhere among them.
fn ended_before_the_commit(end: impl Fn(&Cluster, i32)) {
    const ORDERS: i64 = 1500;
    let mut lone = Lone::new(", remind_before => '{1 hour}', batch_size => 1");
    let shop = &mut lone.shop;
    let mut holder = hold(shop);
    shop.fill(1..=ORDERS, "now() + interval '1 hour 3 s'");
    let mut pid = wait_for_held(shop);
    let mut is_first = true;
    loop {
        let given = reminders(&mut lone.shop);
        assert_eq!(given.is_empty(), is_first, "{given:?}");
        assert!(given.iter().all(|(_, _, times)| *times == 1), "{given:?}");
        end(&lone.cluster, pid);
        // Either the server is down for a moment, or only the worker is.
        wait_until("the worker to have gone", PATIENCE, || {
            match lone.shop.client.query("SELECT FROM pg_stat_activity WHERE pid = $1", &[&pid]) {
                Ok(rows) => rows.is_empty(),
                Err(_) => true,
            }
        });
        lone.reconnect();
        drop(holder);
        if !is_first {
            break;
        }
        wait_until("the first of them", PATIENCE, || !reminders(&mut lone.shop).is_empty());
        holder = hold(&lone.shop);
        pid = wait_for_held(&mut lone.shop);
        is_first = false;
    }
    let expected: Vec<_> = (1..=ORDERS).map(|id| (id, 3600.0, 1)).collect();
    wait_for_reminders_of(&mut lone.shop, &expected);
    wait_for_later(&mut lone.shop, "1 hour");
    assert_eq!(reminders(&mut lone.shop), expected);
}

#[test]
fn worker_that_is_killed_repeats_no_reminder() {
    ended_before_the_commit(|_, pid| signal(pid, Signal::KILL));
}

#[test]
fn worker_that_is_terminated_repeats_no_reminder() {
    ended_before_the_commit(|_, pid| signal(pid, Signal::TERM));
}

#[test]
fn server_that_is_stopped_repeats_no_reminder() {
    ended_before_the_commit(|cluster, _| {
        cluster.stop(Mode::Immediate);
        cluster.start_again();
    });
}

#[test]
fn server_whose_postmaster_is_killed_repeats_no_reminder() {
    ended_before_the_commit(|cluster, _| {
        cluster.kill9_postmaster();
        cluster.start_again();
    });
}

/// R09: what comes within the interval while the server is down is made up for; what has had its reminder, or
/// had begun inside, is as it was.
#[test]
fn reminders_outlive_a_restart() {
    let mut lone = Lone::new(", remind_before => '{1 hour, 3 s}'");
    lone.shop.fill(1..=5, "now() + interval '1 hour 3 s'");
    lone.shop.fill(6..=6, "now() + interval '59 min'");
    let before: Vec<_> = (1..=5).map(|id| (id, 3600.0, 1)).collect();
    wait_for_reminders_of(&mut lone.shop, &before);
    // That nothing is to be made up for with order 6 is written down within a second or two.
    let written = "SELECT bool_and(r.reminded_to >= o.pay_by) FROM expiry.reminder r, orders o
                   WHERE o.id <= 6 AND r.remind_before = '1 hour'";
    wait_for_value(&mut lone.shop.client, written, true);
    wait_for_later(&mut lone.shop, "1 hour");
    lone.shop.fill(7..=7, "clock_timestamp() + interval '1 hour 2 s'");
    // It is due when the server is back, and its reminder would have been before.
    lone.shop.fill(8..=8, "clock_timestamp() + interval '8 s'");
    lone.cluster.stop(Mode::Immediate);
    let down = std::time::Instant::now();
    wait_until("both instants to pass", PATIENCE, || down.elapsed() > Duration::from_secs(9));
    lone.cluster.start_again();
    lone.reconnect();
    let expected = [before, vec![(7, 3600.0, 1)]].concat();
    wait_for_reminders_of(&mut lone.shop, &expected);
    lone.shop.wait_for_cancelled(1);
    wait_for_later(&mut lone.shop, "1 hour");
    assert_eq!(reminders(&mut lone.shop), expected);
    lone.shop.assert_invariant();
}

/// A row is there when its transaction has committed: in time for its reminder, or within the interval already.
#[test]
fn slow_commit_decides_when_the_row_begins() {
    for is_late in [false, true] {
        let mut shop = shop(&format!(", remind_before => '{{1 hour}}', remind_late => {is_late}"));
        let mut slow = shop.db.connect();
        let insert =
            "BEGIN; INSERT INTO orders (id, pay_by) VALUES (1, clock_timestamp() + interval '1 hour 3 s')";
        slow.batch_execute(insert).unwrap();
        wait_for_later(&mut shop, "1 hour");
        wait_for_later(&mut shop, "1 hour");
        slow.batch_execute("COMMIT").unwrap();
        if is_late {
            wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1)]);
        } else {
            wait_for_later(&mut shop, "1 hour");
            assert_eq!(reminders(&mut shop), []);
        }
    }
}

/// The worker and runs by hand, all at once: they take turns, and none repeats another.
#[test]
fn worker_and_runs_by_hand_share_the_reminders() {
    for is_late in [false, true] {
        let mut shop =
            shop(&format!(", remind_before => '{{1 hour}}', remind_late => {is_late}, batch_size => 5"));
        let spread = "now() + interval '1 hour 3 s' + (id % 100) * interval '20 ms'";
        shop.fill(1..=400, spread);
        if is_late {
            shop.fill(401..=500, "now() + interval '50 min'");
        }
        let orders = if is_late { 500 } else { 400 };
        let count = "SELECT count(*) FROM expiry.event WHERE kind = 'reminder'";
        thread::scope(|scope| {
            for _ in 0..3 {
                let mut client = shop.db.connect();
                scope.spawn(move || {
                    wait_until("all reminders", PATIENCE, || {
                        // Who waits for his turn too long says so, as the worker would.
                        let _ = client.batch_execute("CALL expiry.run('orders')");
                        client.query_one(count, &[]).unwrap().get::<_, i64>(0) >= orders
                    });
                });
            }
        });
        wait_for_later(&mut shop, "1 hour");
        assert_eq!(reminders(&mut shop), (1..=orders).map(|id| (id, 3600.0, 1)).collect::<Vec<_>>());
    }
}

/// While reminders are being committed, the orders can be paid, extended and deleted; and drop_policy waits for
/// no longer than that.
#[test]
fn reminder_holds_up_nobody() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.fill(1..=3, "now() + interval '1 hour 3 s'");
    let holder = hold(&shop);
    wait_for_held(&mut shop);
    assert!(shop.pay(1));
    shop.client
        .batch_execute(
            "SET lock_timeout = '10 s'; UPDATE orders SET pay_by = pay_by + interval '1 h' WHERE id = 2;
             DELETE FROM orders WHERE id = 3; RESET lock_timeout",
        )
        .unwrap_or_else(|error| panic!("{error:?}"));
    drop(holder);
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1), (2, 3600.0, 1), (3, 3600.0, 1)]);
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    let left = "SELECT (SELECT count(*) FROM expiry.reminder) + (SELECT count(*) FROM expiry.reminded)";
    assert_eq!(shop.value::<i64>(left), 0);
}

/// Somebody holds the event ids for long: reminders wait for their turn, as cancellations do, and are given once.
#[test]
fn reminders_wait_for_the_event_ids() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.fill(1..=1, "now() + interval '2 hours'");
    // The worker of another owner, who has written his events and does not come to commit.
    let role = format!("other_{}", shop.db.name);
    shop.client
        .batch_execute(&format!(
            "CREATE ROLE {role}; CREATE SCHEMA other AUTHORIZATION {role}; SET ROLE {role};
             CREATE TABLE other.bills (id bigint PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz DEFAULT now());
             CREATE FUNCTION other.close_bill(k bigint) RETURNS void LANGUAGE sql AS
                 $$ UPDATE other.bills SET status = 'closed' WHERE id = k $$;
             SELECT expiry.create_policy('other.bills', 'pay_by', $$status = 'pending'$$, 'other.close_bill(bigint)');
             RESET ROLE"
        ))
        .unwrap();
    shop.wait_for_index();
    let mut holder = shop.db.connect();
    DebugPoint::Recorded.hold(&mut holder);
    shop.client.batch_execute("INSERT INTO other.bills VALUES (1)").unwrap();
    let held = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {}",
        DebugPoint::Recorded.sign()
    );
    wait_for_value(&mut shop.client, &held, 1_i64);
    shop.fill(2..=20, "now() + interval '1 hour 3 s'");
    // It has given up at least once: it waits no longer than pg_expiry.lock_timeout, 500 ms.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                 AND backend_type = 'pg_expiry worker' AND wait_event_type = 'Lock'";
    for is_waiting in [1_i64, 0, 1] {
        wait_for_value(&mut shop.client, waits, is_waiting);
    }
    DebugPoint::Recorded.release(&mut holder);
    wait_for_reminders_of(&mut shop, &(2..=20).map(|id| (id, 3600.0, 1)).collect::<Vec<_>>());
    wait_for_value(&mut shop.client, "SELECT status FROM other.bills", "closed".to_owned());
    shop.client
        .batch_execute(&format!(
            "DELETE FROM expiry.event WHERE policy = 'bills'; SELECT expiry.stop_workers(); DROP OWNED BY {role} CASCADE; DROP ROLE {role}"
        ))
        .unwrap();
    shop.assert_invariant();
}

/// A cancel function that is broken is no reason not to remind.
#[test]
fn tripped_policy_goes_on_reminding() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.replace_cancel_order("RAISE EXCEPTION 'broken'");
    shop.fill(1..=40, "now()");
    let state = "SELECT state FROM expiry.status";
    wait_until("a tripped policy", PATIENCE, || shop.value::<String>(state) == "tripped");
    shop.fill(41..=45, "now() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut shop, &(41..=45).map(|id| (id, 3600.0, 1)).collect::<Vec<_>>());
}

/// A backlog that lasts: reminders are given between its batches.
#[test]
fn backlog_does_not_hold_up_reminders() {
    let mut shop = shop(", remind_before => '{1 hour}'");
    shop.replace_cancel_order(
        "PERFORM pg_sleep(0.002); UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.fill(1..=10_000, "now() - interval '1 h'");
    shop.fill(10_001..=10_005, "now() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut shop, &(10_001..=10_005).map(|id| (id, 3600.0, 1)).collect::<Vec<_>>());
    let left = shop.value::<i64>("SELECT count(*) FROM orders WHERE pay_by < now() AND status = 'pending'");
    assert!(left > 0, "the backlog was over too soon");
}

/// R39: with the notification queue filling up, reminders are recorded and not notified.
#[test]
fn reminders_are_withheld_while_the_notification_queue_is_full() {
    let cluster = Cluster::builder().setting("pg_expiry_debug.queue_scale", "16384").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy(", remind_before => '{1 hour}'");
    wait_for_reminders(&mut shop);
    let mut listener = shop.listen();
    let mut stuck = shop.db.connect();
    stuck.batch_execute("LISTEN order_expired").unwrap();
    stuck.batch_execute("BEGIN; SELECT 1").unwrap();
    let fill =
        "SELECT count(pg_notify('somebody_elses', repeat('x', 7000) || n)) FROM generate_series(1, 100) n";
    shop.client.batch_execute(fill).unwrap();
    shop.fill(1..=3, "now() + interval '1 hour 3 s'");
    wait_for_reminders_of(&mut shop, &[(1, 3600.0, 1), (2, 3600.0, 1), (3, 3600.0, 1)]);
    assert_eq!(shop.value::<i64>("SELECT withheld_notifications FROM expiry.progress"), 3);
    assert!(listener.drain().is_empty());
    stuck.batch_execute("ROLLBACK; UNLISTEN *").unwrap();
    let resync = wait_until("the resync", 2 * PATIENCE, || {
        shop.client.batch_execute("SELECT pg_notify('somebody_elses', repeat('x', 7000))").unwrap();
        listener.drain().pop()
    });
    let caught_up = format!("SELECT count(*) FROM expiry.events_after({})", resync.json["after"]);
    assert_eq!(shop.value::<i64>(&caught_up), 3);
}
