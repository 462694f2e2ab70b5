//! Many more owners than worker slots: they take turns, nobody starves, and it costs lateness, which is measured.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, wait_until, workers};

use super::common::shop_on;
use super::turns::{more_owners, order_of_each, pending};

const OWNERS: usize = 100;
/// What `rules/turns.rs` promises to a hundred owners is 20 s; this is a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How late the orders of this number were, of all owners: half of them, and the worst, in seconds.
fn lateness(client: &mut Client, id: usize) -> (f64, f64) {
    let sql = "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late), max(late), count(*)
               FROM expiry.event, LATERAL (SELECT extract(epoch FROM lateness)::float8 AS late) l
               WHERE key->>'id' = $1";
    let row = client.query_one(sql, &[&id.to_string()]).unwrap();
    assert_eq!(row.get::<_, i64>(2), OWNERS as i64, "events of orders {id}");
    (row.get(0), row.get(1))
}

/// R25, R49: a hundred roles, each with a policy, and the server's default of eight processes.
#[test]
fn hundred_owners_take_turns() {
    let cluster = Cluster::builder().setting("max_worker_processes", "8").start();
    let mut shop = shop_on(&cluster);
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    more_owners(&mut shop, OWNERS);
    let all_served = |client: &mut Client| {
        wait_until("the orders of all owners to be cancelled", PATIENCE, || match pending(client, OWNERS) {
            0 => Ok(()),
            left => Err(left),
        });
    };
    // Nobody has been told of these: each owner's come to light when it is his turn.
    order_of_each(&mut shop.client, OWNERS, 1, "now()");
    all_served(&mut shop.client);
    // As before, and by now every owner has been looked after once.
    order_of_each(&mut shop.client, OWNERS, 2, "now()");
    all_served(&mut shop.client);
    let (half, worst) = lateness(&mut shop.client, 2);
    println!("known to nobody: half within {half:.1} s, the last after {worst:.1} s");
    assert!(worst < PATIENCE.as_secs_f64());

    // Deadlines that are known when they come: by then each owner has had a turn.
    order_of_each(&mut shop.client, OWNERS, 3, "now() + interval '30 s' + random() * interval '15 s'");
    all_served(&mut shop.client);
    let (half, worst) = lateness(&mut shop.client, 3);
    println!("known before: half within {half:.1} s, the last after {worst:.1} s");

    // With a call, nobody waits for the end of a round.
    order_of_each(&mut shop.client, OWNERS, 4, "now()");
    shop.client.batch_execute("SELECT expiry.wake()").unwrap();
    all_served(&mut shop.client);
    let (half, worst) = lateness(&mut shop.client, 4);
    println!("called: half within {half:.1} s, the last after {worst:.1} s");

    let states: Vec<String> = workers(&mut shop.client).into_iter().map(|worker| worker.state).collect();
    assert_eq!(states.len(), OWNERS, "{states:?}");
    let running = states.iter().filter(|state| *state == "running").count();
    assert!(running <= 4, "{running} of {OWNERS} are running");
    let failed = "SELECT sum(failed)::bigint FROM expiry.status";
    assert_eq!(shop.value::<i64>(failed), 0);
}
