//! Consumers of every kind that are killed and restarted at random, under load, while workers are killed too:
//! each has dealt with each event exactly once, in the order of the ids. Some seconds in CI, a minute with
//! PG_EXPIRY_LONG set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::fallible_iterator::FallibleIterator;
use pg_expiry_tests::postgres::{Client, Error};
use pg_expiry_tests::{Db, Shop, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const RATE: i64 = 5000;

/// How a consumer hears that there is something, and how it keeps its place.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Listen,
    Wait,
    Named,
}

const KINDS: [Kind; 3] = [Kind::Listen, Kind::Wait, Kind::Named];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Listen => "listen",
            Kind::Wait => "wait",
            Kind::Named => "named",
        }
    }
}

/// The life of one process of a consumer, from connecting to whatever ends it.
fn live(db: &Db, kind: Kind, is_over: &AtomicBool) -> Result<(), Error> {
    let mut client = db.endpoint.try_connect(&db.name, "postgres")?;
    client.batch_execute(&format!("SET application_name = 'consumer {}'", kind.name()))?;
    if matches!(kind, Kind::Listen) {
        client.batch_execute("LISTEN order_expired")?;
    }
    loop {
        let last = is_over.load(Ordering::SeqCst);
        while deal(&mut client, kind)? {}
        if last {
            return Ok(());
        }
        match kind {
            Kind::Listen => {
                let mut news = client.notifications();
                news.timeout_iter(Duration::from_millis(200)).next()?;
                while news.iter().next()?.is_some() {}
            }
            _ => {
                let place: i64 =
                    client.query_one("SELECT place FROM places WHERE consumer = $1", &[&kind.name()])?.get(0);
                client.batch_execute(&format!("CALL expiry.wait_for_events({place}, '200 ms')"))?;
            }
        }
    }
}

/// Some events, dealt with in the transaction that notes that they are. False when there were none.
fn deal(client: &mut Client, kind: Kind) -> Result<bool, Error> {
    let mut transaction = client.transaction()?;
    let sql = match kind {
        Kind::Named => "SELECT id FROM expiry.fetch_events('named', 500)",
        _ => {
            "SELECT e.id FROM (SELECT place FROM places WHERE consumer = $1 FOR UPDATE) p, expiry.events_after(p.place, 500) e"
        }
    };
    let rows = match kind {
        Kind::Named => transaction.query(sql, &[])?,
        _ => transaction.query(sql, &[&kind.name()])?,
    };
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let Some(last) = ids.last() else { return Ok(false) };
    let dealt = "INSERT INTO dealt (consumer, event_id) SELECT $1, id FROM unnest($2::bigint[]) WITH ORDINALITY u(id, n) ORDER BY n";
    transaction.execute(dealt, &[&kind.name(), &ids])?;
    transaction.execute("UPDATE places SET place = $2 WHERE consumer = $1", &[&kind.name(), last])?;
    if matches!(kind, Kind::Named) {
        transaction.execute("SELECT expiry.ack_events('named', $1)", &[last])?;
    }
    transaction.commit()?;
    Ok(true)
}

#[test]
fn each_consumer_sees_each_event_once_in_order() {
    let seconds = if std::env::var_os("PG_EXPIRY_LONG").is_some() { 60 } else { 5 };
    let rows = seconds * RATE;
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE places (consumer text PRIMARY KEY, place bigint NOT NULL);
             INSERT INTO places VALUES ('listen', 0), ('wait', 0), ('named', 0);
             CREATE TABLE dealt (n bigserial, consumer text, event_id bigint);
             SELECT expiry.subscribe('named', after => 0);
             CREATE FUNCTION cancel_orders(ids bigint[]) RETURNS void LANGUAGE sql AS
                 $$ UPDATE orders SET status = 'cancelled' WHERE id = ANY (ids) $$;
             SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'cancel_orders(bigint[])')",
        )
        .unwrap();
    shop.wait_for_index();
    shop.fill(1..=rows, &format!("now() + interval '1 s' + id * interval '{} us'", 1_000_000 / RATE));
    let is_over = AtomicBool::new(false);
    let (db, is_over) = (&shop.db, &is_over);
    let mut restarts = Vec::new();
    thread::scope(|scope| {
        let consumers: Vec<_> = KINDS
            .iter()
            .map(|kind| {
                scope.spawn(move || {
                    let mut lives = 1;
                    while live(db, *kind, is_over).is_err() {
                        lives += 1;
                    }
                    lives
                })
            })
            .collect();
        let mut killer = db.connect();
        let found = |killer: &mut Client, sql: &str| killer.query_one(sql, &[]).unwrap().get::<_, bool>(0);
        wait_until("the first events", PATIENCE, || {
            found(&mut killer, "SELECT EXISTS (SELECT FROM expiry.event)")
        });
        // Everybody once, in the middle of it.
        for kind in KINDS {
            let kill = format!(
                "SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'consumer {}'",
                kind.name()
            );
            wait_until("somebody to kill", PATIENCE, || found(&mut killer, &kill));
        }
        // Then somebody every now and then, workers more seldom, until all is cancelled.
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND (application_name LIKE 'consumer%' OR backend_type = 'pg_expiry worker')
              AND random() < CASE backend_type WHEN 'client backend' THEN 0.03 ELSE 0.003 END) p";
        let left = "SELECT count(*) FROM (SELECT FROM orders WHERE status = 'pending' LIMIT 1) l";
        wait_until("all to be cancelled", PATIENCE + 2 * Duration::from_secs(seconds.unsigned_abs()), || {
            killer.execute(kill, &[]).unwrap();
            killer.query_one(left, &[]).unwrap().get::<_, i64>(0) == 0
        });
        is_over.store(true, Ordering::SeqCst);
        restarts.extend(consumers.into_iter().map(|consumer| consumer.join().unwrap()));
    });
    let rate =
        "SELECT count(*) / extract(epoch FROM max(occurred_at) - min(occurred_at))::float8 FROM expiry.event";
    println!("{:.0} cancellations a second, lives of the consumers: {restarts:?}", shop.value::<f64>(rate));
    assert!(restarts.iter().all(|lives| *lives > 1), "some consumer was never killed: {restarts:?}");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), rows);
    assert_eq!(shop.value::<i64>("SELECT count(DISTINCT key) FROM expiry.event"), rows);
    for kind in KINDS {
        let sql = format!(
            "SELECT count(*), count(DISTINCT event_id), count(*) FILTER (WHERE event_id <= before),
                    count(*) FILTER (WHERE EXISTS (SELECT FROM expiry.event e WHERE e.id = event_id))
             FROM (SELECT event_id, lag(event_id) OVER (ORDER BY n) AS before FROM dealt WHERE consumer = '{}') d",
            kind.name()
        );
        let row = shop.client.query_one(&sql, &[]).unwrap();
        let seen: [i64; 4] = std::array::from_fn(|column| row.get(column));
        assert_eq!(
            seen,
            [rows, rows, 0, rows],
            "{kind:?}: dealt with, different ones, out of order, real ones"
        );
    }
}
