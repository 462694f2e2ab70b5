//! Logical replication: what a subscriber gets is expired there if somebody wants that, and publisher and
//! subscriber do not both do it by accident.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Db, Shop, db_error, eventually, wait_until, worker_pids};

const PATIENCE: Duration = Duration::from_secs(60);

fn publisher() -> Cluster {
    Cluster::builder().setting("wal_level", "logical").start()
}

fn publish(shop: &mut Shop, what: &str) {
    shop.client.batch_execute(&format!("CREATE PUBLICATION shop FOR {what}")).unwrap();
}

/// Subscribes and waits until all that is there has been copied.
fn subscribe(subscriber: &mut Shop, publisher: &Db) {
    let connection =
        format!("host={} dbname={} user=postgres", publisher.endpoint.host().display(), publisher.name);
    subscriber
        .client
        .batch_execute(&format!("CREATE SUBSCRIPTION shop CONNECTION '{connection}' PUBLICATION shop"))
        .unwrap();
    let left = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    wait_until("all tables to be copied", PATIENCE, || match subscriber.value::<i64>(left) {
        0 => Ok(()),
        left => Err(left),
    });
}

/// Waits until the subscriber has what is committed now.
fn catch_up(publisher: &mut Shop) {
    let lsn: String = publisher.value("SELECT pg_current_wal_lsn()::text");
    let lag = format!("SELECT bool_and(replay_lsn >= '{lsn}') FROM pg_stat_replication");
    wait_until("the subscriber to catch up", PATIENCE, || {
        publisher.client.query_one(&lag, &[]).unwrap().get::<_, Option<bool>>(0) == Some(true)
    });
}

/// Rows of the tables, without what each side writes down by its own clock.
fn orders(shop: &mut Shop) -> String {
    shop.value("SELECT string_agg(id || ' ' || status, ', ' ORDER BY id) FROM orders")
}

/// R58 (d): rows that are copied at first, and rows that are applied.
#[test]
fn subscriber_expires_what_arrives() {
    let (here, there) = (publisher(), Cluster::builder().own_identity().start());
    let mut publisher = Shop::in_database(here.create_database());
    publish(&mut publisher, "TABLE orders");
    publisher.fill(1..=100, "now() - interval '1 s'");
    let mut subscriber = Shop::in_database(there.create_database());
    subscriber.db.create_extension();
    subscriber.create_policy("");
    subscribe(&mut subscriber, &publisher.db);
    subscriber.wait_for_cancelled(100);
    publisher.fill(101..=200, "now() - interval '1 s'");
    publisher.fill(201..=300, "now() + id * interval '5 ms'");
    subscriber.wait_for_cancelled(300);
    assert_eq!(publisher.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), 300);

    // Paid there, before it is due here.
    publisher.fill(301..=310, "now() + interval '2 s'");
    publisher.client.batch_execute("UPDATE orders SET status = 'paid' WHERE id > 300").unwrap();
    // Extended there when it was cancelled here already: the publisher's row comes as it is.
    publisher.client.batch_execute("UPDATE orders SET pay_by = now() + interval '1 h' WHERE id = 1").unwrap();
    catch_up(&mut publisher);
    eventually(&mut subscriber.client, "SELECT count(*) FROM orders WHERE status = 'paid'", 10_i64);
    eventually(&mut subscriber.client, "SELECT status FROM orders WHERE id = 1", "pending".to_owned());
    eventually(&mut subscriber.client, "SELECT count(*) FROM expiry.event", 300_i64);
}

/// All tables are published, and with them ours: the subscriber's policies wait until they are resumed,
/// also if its database happens to have the same number.
#[test]
fn publisher_and_subscriber_do_not_both_expire() {
    let (here, there) = (publisher(), Cluster::builder().own_identity().start());
    let mut publisher = Shop::in_database(here.create_database());
    publisher.db.create_extension();
    publish(&mut publisher, "ALL TABLES");
    publisher.replace_cancel_order(
        "IF order_id % 10 = 0 THEN RAISE EXCEPTION 'not this one'; END IF;
         UPDATE stock SET qty = qty + 1 WHERE sku = 1;
         UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    publisher.create_policy(", max_attempts => 2, retry_delay => '10 ms'");
    publisher.client.batch_execute("SELECT expiry.subscribe('mailer')").unwrap();
    publisher.fill(1..=20, "now() - interval '1 s'");
    publisher.wait_for_cancelled(18);

    let mut subscriber = Shop::without_rows(there.create_database());
    subscriber.db.create_extension();
    let numbers = [&mut publisher, &mut subscriber].map(|shop| {
        shop.value::<i64>("SELECT oid::bigint FROM pg_database WHERE datname = current_database()")
    });
    assert_eq!(numbers[0], numbers[1], "the case that this test is about");
    subscribe(&mut subscriber, &publisher.db);
    let state = "SELECT string_agg(state, ' ') FROM expiry.status";
    eventually(&mut subscriber.client, state, "restored".to_owned());

    // Failing rows are updated and deleted, events come, consumers move on.
    publisher.fill(21..=60, "now() + id * interval '10 ms'");
    publisher.wait_for_cancelled(54);
    let quarantined = "SELECT count(*) FROM expiry.failure WHERE next_attempt_at IS NULL";
    eventually(&mut publisher.client, quarantined, 6_i64);
    publisher.client.batch_execute("SELECT expiry.fetch_events('mailer', 10)").unwrap();
    catch_up(&mut publisher);
    assert_eq!(orders(&mut subscriber), orders(&mut publisher));
    let events = "SELECT string_agg(id || key::text || kind, ', ' ORDER BY id) FROM expiry.event";
    assert_eq!(subscriber.value::<String>(events), publisher.value::<String>(events));
    assert_eq!(subscriber.value::<String>(state), "restored");
    assert_eq!(worker_pids(&mut subscriber.client), [0; 0]);
    let error = db_error(subscriber.client.batch_execute("CALL expiry.run('orders')"));
    assert_eq!(error.code().code(), "55000");

    // An index's number of the publisher is none of the subscriber's, however it is called there.
    let of_a_dropped_policy = "CREATE INDEX innocent ON orders (cancelled_at);
        INSERT INTO expiry.binding (policy, database, system_identifier, server_version, index)
        SELECT 'dropped', database, system_identifier, server_version, 'innocent'::regclass FROM expiry.binding";
    subscriber.client.batch_execute(of_a_dropped_policy).unwrap();

    // The subscriber takes over: the publisher stops, its last changes arrive, and it is cut off.
    publisher.client.batch_execute("SELECT expiry.pause()").unwrap();
    publisher.fill(61..=80, "now() - interval '1 s'");
    catch_up(&mut publisher);
    let last: i64 = subscriber.value("SELECT max(id) FROM expiry.event");
    subscriber.client.batch_execute("DROP SUBSCRIPTION shop").unwrap();
    subscriber.client.batch_execute("CREATE OR REPLACE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE sql
        AS $$ UPDATE stock SET qty = qty + 1 WHERE sku = 1; UPDATE orders SET status = 'cancelled' WHERE id = order_id $$").unwrap();
    subscriber.client.batch_execute("SELECT expiry.resume()").unwrap();
    subscriber.wait_for_cancelled(54 + 20);
    let new = format!("SELECT count(*) FROM expiry.events_after({last})");
    eventually(&mut subscriber.client, &new, 20_i64);
    eventually(&mut subscriber.client, "SELECT count(*) FROM expiry.binding WHERE policy = 'dropped'", 0_i64);
    assert!(subscriber.value::<bool>("SELECT to_regclass('innocent') IS NOT NULL"));
    assert_eq!(publisher.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), 26);
}

/// A publication of all tables refuses updates and deletes in tables without a replica identity.
#[test]
fn every_table_of_ours_can_be_published() {
    let db = Db::with_extension();
    let without = "SELECT count(*) FROM pg_class c WHERE relnamespace = 'expiry'::regnamespace AND relkind = 'r'
        AND relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)";
    eventually(&mut db.connect(), without, 0_i64);
}

/// A physical copy that is made a subscriber (pg_createsubscriber, from version 17 on) has another identity
/// from then on, and its policies wait. While it is being made one, a setting holds them.
#[test]
fn copy_with_another_identity_waits() {
    let here = publisher();
    let mut publisher = Shop::in_database(here.create_database());
    publisher.db.create_extension();
    publisher.create_policy("");
    publisher.fill(1..=10, "now() - interval '1 s'");
    publisher.wait_for_cancelled(10);
    publisher.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    publisher.fill(11..=20, "now() - interval '1 s'");

    let copy = here.base_backup(&["--write-recovery-conf"], &[("pg_expiry.enabled", "off")]);
    let db = Db { name: publisher.db.name.clone(), endpoint: copy.endpoint().clone() };
    if copy.has_program("pg_createsubscriber") {
        let from = format!("host={} user=postgres dbname={}", here.endpoint().host().display(), db.name);
        let mut create = copy.program("pg_createsubscriber");
        create.args(["-d", &db.name, "-U", "postgres", "-P", &from, "-s"]).arg(copy.endpoint().host());
        let output = create.arg("-D").arg(copy.data()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        copy.start_again();
    } else {
        copy.start_again();
        let mut client = db.connect();
        client.query("SELECT pg_promote()", &[]).unwrap();
        client.batch_execute("UPDATE expiry.binding SET system_identifier = 1").unwrap();
    }
    let mut shop = Shop { client: db.connect(), db };
    eventually(&mut shop.client, "SELECT state FROM expiry.status", "restored".to_owned());
    copy.set("pg_expiry.enabled", "on");
    let error = db_error(shop.client.batch_execute("CALL expiry.run('orders')"));
    assert_eq!(error.code().code(), "55000");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), 10);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 10);
    shop.client.batch_execute("SELECT expiry.resume()").unwrap();
    shop.wait_for_cancelled(20);
    shop.assert_invariant();
    assert_eq!(publisher.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'"), 10);
}
