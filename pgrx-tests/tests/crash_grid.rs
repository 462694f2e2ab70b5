//! The worker, and the server, are ended in every way at every moment of a batch. Nothing is lost, nothing
//! happens twice, and the worker is back without anybody's help.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, DebugPoint, Mode, Shop, Signal, signal, wait_until, worker_pids};

const PATIENCE: Duration = Duration::from_secs(20);
/// Fewer than the first batch of a worker claims.
const ROWS: i64 = 20;

/// Where the worker is when it is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Idle,
    /// Rows are claimed, nothing is called yet.
    Claimed,
    InTheFunction,
    /// All calls are done, nothing is recorded yet.
    Called,
    /// Events are written, next is the commit.
    Recorded,
}

const MOMENTS: [Moment; 5] =
    [Moment::Idle, Moment::Claimed, Moment::InTheFunction, Moment::Called, Moment::Recorded];

impl Moment {
    fn point(self) -> Option<DebugPoint> {
        match self {
            Moment::Claimed => Some(DebugPoint::Claimed),
            Moment::Called => Some(DebugPoint::Called),
            Moment::Recorded => Some(DebugPoint::Recorded),
            Moment::Idle | Moment::InTheFunction => None,
        }
    }

    /// What pg_stat_activity shows of a worker that is there.
    fn sign(self) -> String {
        match self.point() {
            Some(point) => point.sign(),
            None if self == Moment::Idle => "state = 'idle'".into(),
            None => "wait_event = 'PgSleep'".into(),
        }
    }
}

/// A shop on a server of its own, whose cancel function waits while the gate is shut.
struct Grid {
    cluster: Cluster,
    shop: Shop,
    last_id: i64,
}

impl Grid {
    fn new() -> Grid {
        let cluster = Cluster::start();
        let mut shop = Shop::in_database(cluster.create_database());
        shop.db.create_extension();
        shop.client
            .batch_execute("CREATE TABLE gate (is_shut bool NOT NULL); INSERT INTO gate VALUES (false)")
            .unwrap();
        shop.replace_cancel_order(
            "WHILE (SELECT is_shut FROM gate) LOOP PERFORM pg_sleep(0.05); END LOOP;
             UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
             UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id",
        );
        shop.create_policy("");
        Grid { cluster, shop, last_id: 0 }
    }

    /// Due rows, and the worker's pid once it is there; the session that holds it there, if one must.
    fn reach(&mut self, moment: Moment) -> (i32, Option<Client>) {
        let holder = moment.point().map(|point| {
            let mut holder = self.shop.db.connect();
            point.hold(&mut holder);
            holder
        });
        self.set_gate(moment == Moment::InTheFunction);
        let first = self.last_id + 1;
        self.last_id += ROWS;
        // The idle worker must be hit before these are due, and they must be cancelled nonetheless.
        let pay_by = if moment == Moment::Idle { "now() + interval '1 s'" } else { "now() - interval '1 s'" };
        self.shop.fill(first..=self.last_id, pay_by);
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_expiry worker' AND {}",
            moment.sign()
        );
        let pid = wait_until(format_args!("the worker to be at {moment:?}"), PATIENCE, || {
            self.shop.client.query_opt(&sql, &[]).unwrap().map(|row| row.get(0))
        });
        (pid, holder)
    }

    fn set_gate(&mut self, is_shut: bool) {
        self.shop.client.execute("UPDATE gate SET is_shut = $1", &[&is_shut]).unwrap();
    }

    /// After the server has been down.
    fn reconnect(&mut self) {
        self.shop.client = wait_until("the server to be back", PATIENCE, || {
            self.shop.db.endpoint.try_connect(&self.shop.db.name, "postgres")
        });
    }

    /// Nothing of an unfinished batch is to be seen.
    fn assert_nothing_done(&mut self, moment: Moment) {
        let sql = format!(
            "SELECT count(*) FROM orders o WHERE id > {} AND (status <> 'pending' OR EXISTS (
                SELECT FROM expiry.event e WHERE e.key = jsonb_build_object('id', o.id::text)))",
            self.last_id - ROWS
        );
        assert_eq!(self.shop.value::<i64>(&sql), 0, "{moment:?}");
    }

    /// Everything is cancelled once, by a worker.
    fn check(&mut self, moment: Moment) {
        let left = "SELECT count(*) FROM orders WHERE status = 'pending'";
        wait_until(format_args!("all to be cancelled after {moment:?}"), PATIENCE, || {
            match self.shop.value::<i64>(left) {
                0 => Ok(()),
                left => Err(left),
            }
        });
        self.shop.assert_invariant();
        assert_eq!(self.shop.value::<i64>("SELECT count(*) FROM expiry.event"), self.last_id, "{moment:?}");
        assert_eq!(self.shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0, "{moment:?}");
        wait_until(format_args!("one worker after {moment:?}"), PATIENCE, || {
            let pids = worker_pids(&mut self.shop.client);
            if pids.len() == 1 { Ok(()) } else { Err(pids) }
        });
    }
}

/// The worker ends, the server does not.
#[test]
fn terminated_worker_is_replaced() {
    let mut grid = Grid::new();
    for moment in MOMENTS {
        let (pid, holder) = grid.reach(moment);
        signal(pid, Signal::TERM);
        wait_until(format_args!("another worker after {moment:?}"), PATIENCE, || {
            let pids = worker_pids(&mut grid.shop.client);
            if pids.len() == 1 && pids[0] != pid { Ok(()) } else { Err(pids) }
        });
        if moment != Moment::Idle {
            grid.assert_nothing_done(moment);
        }
        drop(holder);
        grid.set_gate(false);
        grid.check(moment);
    }
}

/// SIGINT cancels what the worker runs, and costs the row nothing.
#[test]
fn interrupted_worker_goes_on() {
    let mut grid = Grid::new();
    for moment in MOMENTS {
        let (pid, holder) = grid.reach(moment);
        if moment != Moment::Idle {
            let begun = format!(
                "SELECT xact_start::text FROM pg_stat_activity WHERE pid = {pid} AND xact_start IS NOT NULL AND {}",
                moment.sign()
            );
            // What it says it is at stays there for a moment when its transaction is over.
            let interrupted: String = wait_until("its transaction", PATIENCE, || {
                grid.shop.client.query_opt(&begun, &[]).unwrap().map(|row| row.get(0))
            });
            signal(pid, Signal::INT);
            wait_until(format_args!("another transaction to be at {moment:?}"), PATIENCE, || {
                let row = grid.shop.client.query_opt(&begun, &[]).unwrap();
                // NULL: between the two.
                row.and_then(|row| row.get::<_, Option<String>>(0)).is_some_and(|begun| begun != interrupted)
            });
            grid.assert_nothing_done(moment);
        } else {
            signal(pid, Signal::INT);
        }
        drop(holder);
        grid.set_gate(false);
        grid.check(moment);
        assert_eq!(worker_pids(&mut grid.shop.client), [pid], "{moment:?}");
    }
}

/// A process that dies so takes all sessions with it: that is PostgreSQL's rule.
fn crash_of_worker(how: Signal) {
    let mut grid = Grid::new();
    for moment in MOMENTS {
        let (pid, _holder) = grid.reach(moment);
        signal(pid, how);
        wait_until("the sessions to be ended", PATIENCE, || {
            grid.shop.client.batch_execute("SELECT").is_err()
        });
        grid.reconnect();
        grid.set_gate(false);
        grid.check(moment);
        assert_ne!(worker_pids(&mut grid.shop.client), [pid], "{moment:?}");
    }
}

#[test]
fn killed_worker_is_replaced() {
    crash_of_worker(Signal::KILL);
}

#[test]
fn worker_that_quits_is_replaced() {
    crash_of_worker(Signal::QUIT);
}

fn end_of_server(end: fn(&Cluster)) {
    let mut grid = Grid::new();
    for moment in MOMENTS {
        let (_, _holder) = grid.reach(moment);
        end(&grid.cluster);
        grid.cluster.start_again();
        grid.reconnect();
        grid.set_gate(false);
        grid.check(moment);
    }
}

#[test]
fn server_that_is_stopped_at_once_goes_on() {
    end_of_server(|cluster| cluster.stop(Mode::Immediate));
}

#[test]
fn server_that_is_stopped_in_order_goes_on() {
    end_of_server(|cluster| cluster.stop(Mode::Fast));
}

#[test]
fn server_whose_postmaster_is_killed_goes_on() {
    end_of_server(Cluster::kill9_postmaster);
}
