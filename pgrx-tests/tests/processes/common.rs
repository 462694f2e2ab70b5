//! What the tests of launcher and workers have in common.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Shop, wait_for_value, wait_until, worker_pids};

pub const SECOND: Duration = Duration::from_secs(1);
/// "Within a second", with room for a busy machine.
pub const SOON: Duration = Duration::from_secs(3);

/// A shop with its policy on a server of its own.
pub fn shop_on(cluster: &Cluster) -> Shop {
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop
}

/// Waits for the one worker of the client's database.
#[track_caller]
pub fn worker(client: &mut Client) -> i32 {
    wait_until("the worker", 10 * SECOND, || match worker_pids(client)[..] {
        [pid] => Ok(pid),
        ref pids => Err(pids.to_vec()),
    })
}

#[track_caller]
pub fn other_worker(client: &mut Client, than: i32) -> i32 {
    wait_until("another worker", SOON, || match worker_pids(client)[..] {
        [pid] if pid != than => Ok(pid),
        ref pids => Err(pids.to_vec()),
    })
}

/// Makes the shop's cancel function sleep, and waits until the worker is inside it, at order 1.
#[track_caller]
pub fn sleep_in_cancel_function(shop: &mut Shop) {
    shop.replace_cancel_order("PERFORM pg_sleep(600)");
    shop.due(1, SECOND);
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                  AND backend_type = 'pg_expiry worker' AND wait_event = 'PgSleep'";
    wait_for_value(&mut shop.client, asleep, 1_i64);
}

/// Makes it cancel orders again; whoever sleeps in it already begins anew.
#[track_caller]
pub fn wake_from_cancel_function(shop: &mut Shop) {
    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    shop.client.batch_execute("SELECT expiry.stop_workers(); SELECT expiry.start_workers()").unwrap();
}

/// Waits until the policy's index is built; nothing is claimed before.
#[track_caller]
pub fn wait_for_index(shop: &mut Shop) {
    let built = "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND indpred IS NOT NULL
                 AND indisvalid AND indisready";
    wait_for_value(&mut shop.client, built, 1_i64);
}

/// Waits until the worker has nothing to do, and will not look again before lookahead, a minute, is over.
#[track_caller]
pub fn wait_for_rest(shop: &mut Shop) {
    wait_for_index(shop);
    let rested = "SELECT w.state = 'running' AND w.last_pass < clock_timestamp() - interval '0.5 s' AND a.state = 'idle'
                  FROM expiry.workers w JOIN pg_stat_activity a USING (pid)";
    wait_for_value(&mut shop.client, rested, true);
}

/// Lines of the log, from `since` on, that an administrator would have to look into.
pub fn complaints(cluster: &Cluster, since: usize) -> Vec<String> {
    let is_bad =
        |line: &&str| ["ERROR:", "FATAL:", "PANIC:", "WARNING:"].iter().any(|level| line.contains(level));
    cluster.log()[since..].lines().filter(is_bad).map(str::to_owned).collect()
}

/// What a process says that is ended in the middle of something; the line is PostgreSQL's.
pub fn is_ended(line: &str) -> bool {
    line.contains("due to administrator command")
}

/// The same of one that looks, which takes longer than others wait on a busy machine only.
pub fn is_scout_ended(line: &str) -> bool {
    is_ended(line) && line.contains("\"pg_expiry scout\"")
}
