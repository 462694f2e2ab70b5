//! Why no worker serves the policy.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, wait_until, workers};

use super::{assert_says, wait_for_answer, why_not};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn absent_worker_is_told_with_the_reason() {
    let cluster = Cluster::builder()
        .setting("max_worker_processes", "2")
        .setting("max_logical_replication_workers", "0")
        .start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    shop.due(1, SECOND);
    let said = why_not(&mut shop.client, "1");
    assert_says(
        &said,
        &[
            "The row is due since ",
            ", but expiry.stop_workers() has stopped",
            "SELECT expiry.start_workers() lets them in again.",
        ],
    );

    cluster.set("pg_expiry.databases", "elsewhere");
    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    let named = format!("but pg_expiry.databases does not list database \"{}\".", shop.db.name);
    wait_for_answer(&mut shop.client, "1", &[&named]);
    cluster.set("pg_expiry.max_workers", "0");
    cluster.reset("pg_expiry.databases");
    let turn = "but the worker of role \"postgres\" waits for its turn: pg_expiry.max_workers is 0.";
    wait_for_answer(&mut shop.client, "1", &[turn]);

    // Somebody else's process takes the only slot.
    let mut other = Shop::in_database(cluster.create_database());
    other.client.batch_execute("BEGIN").unwrap();
    let occupier = crate::processes::occupy_a_slot(&cluster);
    cluster.reset("pg_expiry.max_workers");
    wait_for_answer(
        &mut shop.client,
        "1",
        &[
            "but no worker of role \"postgres\" runs: all background worker slots",
            "max_worker_processes is too small.",
        ],
    );
    crate::processes::vacate_the_slot(&mut other.client);
    occupier.join().unwrap();
    wait_for_answer(&mut shop.client, "1", &["The row is not pending"]);
    assert_eq!(workers(&mut shop.client)[0].state, "running");
}

/// It is back within a second or so, so it takes a few times until the look comes in between.
#[test]
fn worker_that_is_between_two_lives_is_told() {
    const IT: &str =
        ", but the worker of role \"postgres\" does not run at the moment, it is restarting: see";
    let mut shop = Shop::new();
    let mut orders = 1..;
    wait_until("it to be told", 30 * SECOND, || {
        let id = orders.next().expect("another order");
        shop.wait_for_worker();
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE backend_type = 'pg_expiry worker' AND datname = current_database()";
        shop.client.execute(terminate, &[]).expect("pg_terminate_backend");
        shop.due(id, SECOND);
        let said = why_not(&mut shop.client, &id.to_string());
        if said.contains(IT) { Ok(()) } else { Err(said) }
    });
}

#[test]
fn library_that_is_not_preloaded_is_told() {
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.client.batch_execute("CREATE INDEX ON orders (pay_by) WHERE status = 'pending'").unwrap();
    shop.create_policy("");
    shop.due(1, SECOND);
    let said = why_not(&mut shop.client, "1");
    assert_says(
        &said,
        &["but pg_expiry is not in shared_preload_libraries, so there are no workers: CALL expiry.run()"],
    );
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; SELECT FROM orders FOR UPDATE").unwrap();
    assert_says(&why_not(&mut shop.client, "1"), &["but it is locked by pid "]);
}

#[test]
fn standby_says_that_it_is_one() {
    let primary = Cluster::start();
    let mut shop = Shop::in_database(primary.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    shop.due(1, SECOND);
    let standby = primary.standby();
    let mut replica = standby.connect(&shop.db.name);
    wait_for_answer(
        &mut replica,
        "1",
        &["The row is due since ", ", but this server is a standby, where nothing"],
    );
    wait_for_answer(&mut replica, "2", &["There is no such row"]);
}
