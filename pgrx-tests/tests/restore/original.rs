//! What is dumped and copied, and what must be true of every copy.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Db, Shop, db_error, eventually, scratch_path, wait_until};

pub const SECOND: Duration = Duration::from_secs(1);

/// Rows that are due when the copy is made; two of them have failed before.
const DUE: i64 = 53;

const SCHEMA: &str = r#"
CREATE FUNCTION gift() RETURNS jsonb LANGUAGE sql AS $$ SELECT '"10 points"'::jsonb $$;

CREATE SCHEMA "My Shop";
CREATE TABLE "My Shop"."Order;Items" (
    "Order Id" bigint, "No." int, "State" text NOT NULL DEFAULT 'Open', "Pay 'by'" timestamptz,
    PRIMARY KEY ("Order Id", "No."));
CREATE FUNCTION "My Shop"."Cancel ""it"""(bigint, int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF $1 = 13 THEN RAISE EXCEPTION 'unlucky'; END IF;
    UPDATE "My Shop"."Order;Items" SET "State" = 'Cancelled' WHERE ("Order Id", "No.") = ($1, $2);
END $$;

CREATE TABLE seat (id bigint, day date, state text NOT NULL DEFAULT 'held', held_until timestamptz, PRIMARY KEY (id, day)) {partitions};
CREATE FUNCTION release(s seat) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    UPDATE seat SET state = 'free' WHERE (id, day) = (s.id, s.day);
    RETURN public.gift();
END $$;
"#;

const PARTITIONS: &str = "PARTITION BY RANGE (day);
CREATE TABLE seat_old PARTITION OF seat FOR VALUES FROM ('2000-01-01') TO ('2020-01-01');
CREATE TABLE seat_rest PARTITION OF seat DEFAULT";

const POLICIES: &str = r#"
SELECT expiry.create_policy('"My Shop"."Order;Items"', $$"Pay 'by'"$$, $$"State" = 'Open'$$,
    '"My Shop"."Cancel ""it"""(bigint, int)', name => 'the "quoted" policy', max_attempts => 1);
SELECT expiry.create_policy('seat', 'held_until', $$state = 'held'$$, 'release(seat)', batch_size => 7, timeout => '1 minute',
    remind_before => ARRAY[interval '1 hour', '1 minute']);
"#;

/// Due orders 4..=50, seats and items; a failing order 51 with one attempt, a quarantined item.
const BACKLOG: &str = r#"
INSERT INTO orders (id, pay_by) SELECT id, now() - interval '1 day' FROM generate_series(4, 50) id;
INSERT INTO "My Shop"."Order;Items" VALUES (7, 1, 'Open', '-infinity'), (7, 2, 'Open', now() - interval '1 day');
INSERT INTO seat VALUES (7, '2010-01-01', 'held', now() - interval '1 hour'), (7, '2026-01-01', 'held', now() - interval '1 hour');
"#;

/// A database with three policies (one with every name quoted, one on partitions), rows that are due, one
/// that has failed and one in quarantine, three events, a consumer. Its workers are stopped.
pub struct Original {
    pub shop: Shop,
    /// The last event.
    pub last_id: i64,
}

impl Original {
    pub fn in_database(db: Db) -> Original {
        Original::with(db, PARTITIONS)
    }

    /// The partitioned table is a plain one: PostgreSQL's own `pg_restore --clean` stumbles over the
    /// partitions of any primary key.
    pub fn without_partitions(db: Db) -> Original {
        Original::with(db, "")
    }

    fn with(db: Db, partitions: &str) -> Original {
        let mut shop = Shop::in_database(db);
        shop.db.create_extension();
        shop.client.batch_execute(&SCHEMA.replace("{partitions}", partitions)).unwrap();
        shop.replace_cancel_order(
            "IF order_id = 51 THEN RAISE EXCEPTION 'not this one'; END IF;
             UPDATE stock SET qty = qty + 1 WHERE sku = 1;
             UPDATE orders SET status = 'cancelled' WHERE id = order_id",
        );
        shop.create_policy(
            ", retry_delay => '1 hour', channel => 'Order Expired', starts_at => '2020-01-01'",
        );
        shop.client.batch_execute(POLICIES).unwrap();
        shop.client.batch_execute("SELECT expiry.subscribe('mailer')").unwrap();
        shop.fill(1..=3, "now() - interval '1 s'");
        shop.due(51, 10 * SECOND);
        shop.client
            .batch_execute(
                r#"INSERT INTO "My Shop"."Order;Items" VALUES (13, 1, 'Open', now() - interval '1 s')"#,
            )
            .unwrap();
        eventually(&mut shop.client, "SELECT count(*) FROM expiry.failure", 2_i64);
        eventually(&mut shop.client, "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'", 3_i64);
        shop.wait_for_index();
        shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
        shop.client.batch_execute(BACKLOG).unwrap();
        let last_id = shop.value("SELECT max(id) FROM expiry.event");
        Original { shop, last_id }
    }

    /// Closes its connection: somebody needs the database for himself.
    pub fn left_alone(self, cluster: &Cluster) -> Original {
        let mut shop = self.shop;
        shop.client = cluster.connect("postgres");
        Original { shop, ..self }
    }
}

/// pg_dump of the database, into a file or folder.
pub fn dumped(cluster: &Cluster, db: &Db, options: &[&str]) -> PathBuf {
    let path = scratch_path("dump");
    succeed(cluster.program("pg_dump").args(options).arg("-f").arg(&path).arg(&db.name));
    path
}

/// Runs a program, which must have nothing to complain about.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("a program of the server");
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.is_empty(), "{command:?} ({}): {said}\n{printed}", output.status);
    printed
}

/// Rows that are due, failing ones included.
const BACKLOG_NOW: &str = r#"
SELECT (SELECT count(*) FROM orders WHERE status = 'pending' AND pay_by <= now())
     + (SELECT count(*) FROM "My Shop"."Order;Items" WHERE "State" = 'Open' AND "Pay 'by'" <= now())
     + (SELECT count(*) FROM seat WHERE state = 'held' AND held_until <= now())"#;

/// Everything is there, points to this database's objects, and waits, although there is a worker.
#[track_caller]
pub fn assert_waits(client: &mut Client, original: &Original, events: i64) {
    let names = r#"SELECT string_agg(name || ' ' || relation::text || ' ' || state, ', ' ORDER BY name COLLATE "C")
                   FROM expiry.policy JOIN expiry.status USING (name)"#;
    eventually(
        client,
        names,
        r#"orders orders restored, seat seat restored, the "quoted" policy "My Shop"."Order;Items" restored"#
            .to_owned(),
    );
    let parameters = "SELECT array_agg(concat_ws('|', channel, batch_size, timeout, max_attempts, retry_delay, starts_at AT TIME ZONE 'UTC', remind_before)
                      ORDER BY name) FROM expiry.policy";
    let parameters: Vec<String> = client.query_one(parameters, &[]).unwrap().get(0);
    assert_eq!(
        parameters,
        ["Order Expired|01:00:00|2020-01-01 00:00:00", "7|00:01:00|{01:00:00,00:01:00}", "1"]
    );
    let failures = "SELECT string_agg(policy || ' ' || key::text || ' ' || attempts || ' ' || message || ' '
                        || (next_attempt_at IS NULL), ', ' ORDER BY policy) FROM expiry.failure";
    eventually(
        client,
        failures,
        r#"orders {"id": "51"} 1 not this one false, the "quoted" policy {"No.": 1, "Order Id": "13"} 1 unlucky true"#
            .to_owned(),
    );

    // There is a worker: it serves a policy that is made now, with an id that no event had before.
    client
        .batch_execute(
            "CREATE TABLE coupon (id int PRIMARY KEY, used boolean DEFAULT false, valid_until timestamptz);
             CREATE FUNCTION void(int) RETURNS void LANGUAGE sql AS 'UPDATE coupon SET used = true WHERE id = $1';
             SELECT expiry.create_policy('coupon', 'valid_until', 'NOT used', 'void(int)');
             INSERT INTO coupon VALUES (1, false, now())",
        )
        .unwrap();
    let coupons = "SELECT count(*) FROM expiry.event WHERE policy = 'coupon'";
    wait_until("the new policy's event", 30 * SECOND, || {
        client.query_one(coupons, &[]).unwrap().get::<_, i64>(0) == 1
    });
    eventually(client, "SELECT bool_and(state = 'restored') FROM expiry.status WHERE name <> 'coupon'", true);
    let error = db_error(client.batch_execute("CALL expiry.run('orders')"));
    assert_eq!(error.code().code(), "55000");
    client.batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(client.query_one(BACKLOG_NOW, &[]).unwrap().get::<_, i64>(0), DUE);
    let (count, last): (i64, i64) = {
        let row = client.query_one("SELECT count(*), max(id) FROM expiry.event", &[]).unwrap();
        (row.get(0), row.get(1))
    };
    assert_eq!(count, events + 1, "the coupon's only");
    assert!(last > original.last_id, "{last} > {}", original.last_id);
}

/// After resume() everything that is due is cancelled.
#[track_caller]
pub fn assert_goes_on(client: &mut Client, original: &Original) {
    client.batch_execute("SELECT expiry.resume()").unwrap();
    // The coupon is new as well.
    assert_cancels(client, original, DUE);
}

/// Everything that is due is cancelled once, but for what has failed before; so many events are new.
#[track_caller]
fn assert_cancels(client: &mut Client, original: &Original, new: i64) {
    wait_until("the backlog to be cancelled", 30 * SECOND, || {
        match client.query_one(BACKLOG_NOW, &[]).unwrap().get(0) {
            2_i64 => Ok(()),
            left => Err(left),
        }
    });
    client
        .batch_execute(
            "INSERT INTO orders (id, pay_by) VALUES (60, now() + interval '0.1 s'); SELECT expiry.wake()",
        )
        .unwrap();
    eventually(client, "SELECT status FROM orders WHERE id = 60", "cancelled".to_owned());
    let last_id = original.last_id;
    let events = format!("SELECT count(*) FROM expiry.events_after({last_id}) WHERE kind = 'cancelled'");
    assert_eq!(client.query_one(&events, &[]).unwrap().get::<_, i64>(0), new);
    let keys = format!("SELECT count(DISTINCT (policy, key)) FROM expiry.event WHERE id > {last_id}");
    assert_eq!(client.query_one(&keys, &[]).unwrap().get::<_, i64>(0), new);
    let stock = "SELECT qty - 1000000 = (SELECT count(*) FROM orders WHERE status = 'cancelled') FROM stock";
    assert!(client.query_one(stock, &[]).unwrap().get::<_, bool>(0));
    let states = "SELECT string_agg(DISTINCT state, ' ') FROM expiry.status";
    assert_eq!(client.query_one(states, &[]).unwrap().get::<_, String>(0), "active");
    let failures = "SELECT sum(attempts)::bigint FROM expiry.failure";
    assert_eq!(client.query_one(failures, &[]).unwrap().get::<_, i64>(0), 2, "nothing was tried again yet");
}

/// A copy that has never seen a worker: both of the above.
#[track_caller]
pub fn assert_restored(db: &Db, original: &Original) {
    let mut client = db.connect();
    assert_waits(&mut client, original, 0);
    // The events of before are not in a dump, and neither are those who have read them.
    let error = db_error(client.batch_execute("SELECT expiry.fetch_events('mailer')"));
    assert_eq!(error.code().code(), "42704");
    client.batch_execute("SELECT expiry.subscribe('mailer')").unwrap();
    assert_goes_on(&mut client, original);
    let fetched: i64 =
        client.query_one("SELECT count(*) FROM expiry.fetch_events('mailer')", &[]).unwrap().get(0);
    assert_eq!(fetched, DUE - 1, "all but the coupon, which came before");
}

/// A database that has moved, events and all: it goes on by itself, and so does its consumer.
#[track_caller]
pub fn assert_went_on(client: &mut Client, original: &Original) {
    assert_cancels(client, original, DUE - 1);
    let last_id = original.last_id;
    let fetched = format!("SELECT count(*) FROM expiry.fetch_events('mailer') WHERE id > {last_id}");
    assert_eq!(client.query_one(&fetched, &[]).unwrap().get::<_, i64>(0), DUE - 1);
    // Names are followed as before.
    client
        .batch_execute(
            "ALTER FUNCTION cancel_order(bigint) RENAME TO cancel_it; ALTER TABLE orders RENAME pay_by TO due_at;
             INSERT INTO orders (id, due_at) VALUES (61, now() - interval '1 s')",
        )
        .unwrap();
    eventually(client, "SELECT status FROM orders WHERE id = 61", "cancelled".to_owned());
}
