//! Policies on partitioned tables: whatever the partitions are, and whatever becomes of them, those rows are
//! cancelled that are due, and no other.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, Shop, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Bills, partitioned somehow; `key` is SQL of the primary key's columns.
struct Layout {
    partitions: &'static str,
    key: &'static str,
    function: &'static str,
}

const BY_KEY: &str = "CREATE FUNCTION close(i bigint, r int) RETURNS void LANGUAGE sql AS
    $$ UPDATE bills SET status = 'closed' WHERE id = i AND region = r $$";
const BY_ROW: &str = "CREATE FUNCTION close(b bills) RETURNS void LANGUAGE sql AS
    $$ UPDATE bills SET status = 'closed' WHERE id = b.id AND region = b.region $$";
const BY_ID: &str = "CREATE FUNCTION close(ids bigint[]) RETURNS void LANGUAGE sql AS
    $$ UPDATE bills SET status = 'closed' WHERE id = ANY (ids) $$";
const BY_DEADLINE: &str = "CREATE FUNCTION close(i bigint, p timestamptz) RETURNS void LANGUAGE sql AS
    $$ UPDATE bills SET status = 'closed' WHERE id = i AND pay_by = p $$";

const LAYOUTS: [Layout; 6] = [
    Layout {
        partitions: "PARTITION BY LIST (region);
            CREATE TABLE bills_0 PARTITION OF bills FOR VALUES IN (0);
            CREATE TABLE bills_1 PARTITION OF bills FOR VALUES IN (1, 2);
            CREATE TABLE bills_n PARTITION OF bills DEFAULT",
        key: "id, region",
        function: BY_KEY,
    },
    Layout {
        partitions: "PARTITION BY RANGE (id);
            CREATE TABLE bills_0 PARTITION OF bills FOR VALUES FROM (MINVALUE) TO (100);
            CREATE TABLE bills_1 PARTITION OF bills FOR VALUES FROM (100) TO (200);
            CREATE TABLE bills_n PARTITION OF bills FOR VALUES FROM (200) TO (MAXVALUE)",
        key: "id",
        function: BY_ID,
    },
    Layout {
        partitions: "PARTITION BY HASH (id);
            CREATE TABLE bills_0 PARTITION OF bills FOR VALUES WITH (MODULUS 3, REMAINDER 0);
            CREATE TABLE bills_1 PARTITION OF bills FOR VALUES WITH (MODULUS 3, REMAINDER 1);
            CREATE TABLE bills_2 PARTITION OF bills FOR VALUES WITH (MODULUS 3, REMAINDER 2)",
        key: "id",
        function: BY_ID,
    },
    Layout {
        partitions: "PARTITION BY RANGE (pay_by);
            CREATE TABLE bills_0 PARTITION OF bills FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
            CREATE TABLE bills_1 PARTITION OF bills FOR VALUES FROM ('2020-01-01') TO ('2100-01-01');
            CREATE TABLE bills_n PARTITION OF bills DEFAULT",
        key: "id, pay_by",
        function: BY_DEADLINE,
    },
    // Several levels, with the columns in another order below.
    Layout {
        partitions: "PARTITION BY LIST (region);
            CREATE TABLE bills_0 PARTITION OF bills FOR VALUES IN (0) PARTITION BY HASH (id);
            CREATE TABLE bills_00 PARTITION OF bills_0 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
            CREATE TABLE bills_01 PARTITION OF bills_0 FOR VALUES WITH (MODULUS 2, REMAINDER 1) PARTITION BY RANGE (id);
            CREATE TABLE bills_010 PARTITION OF bills_01 FOR VALUES FROM (0) TO (1000000);
            CREATE TABLE bills_1 (junk int, region int, status text DEFAULT 'pending', pay_by timestamptz NOT NULL, id bigint NOT NULL);
            ALTER TABLE bills_1 DROP junk; ALTER TABLE bills_1 ADD PRIMARY KEY (id, region);
            ALTER TABLE bills ATTACH PARTITION bills_1 FOR VALUES IN (1, 2, 3, 4)",
        key: "id, region",
        function: BY_ROW,
    },
    // Nothing in it yet: partitions come later.
    Layout {
        partitions: "PARTITION BY LIST (region); CREATE TABLE bills_n PARTITION OF bills DEFAULT",
        key: "id, region",
        function: BY_ROW,
    },
];

fn client(db: &Db, layout: &Layout) -> Client {
    let mut client = db.connect();
    let Layout { partitions, key, function } = layout;
    client
        .batch_execute(&format!(
            "CREATE TABLE bills (id bigint, region int DEFAULT 0, status text DEFAULT 'pending', pay_by timestamptz NOT NULL,
                                 PRIMARY KEY ({key})) {partitions};
             {function}"
        ))
        .unwrap_or_else(|error| panic!("{partitions}: {error:?}"));
    client
}

const POLICY: &str = "SELECT expiry.create_policy('bills', 'pay_by', $$status = 'pending'$$, 'close', retry_delay => '100 ms')";
const DUE: &str = "SELECT count(*) FROM bills WHERE status = 'pending' AND pay_by <= now()";

#[track_caller]
fn wait_until_none_is_due(client: &mut Client) {
    wait_until("no bill to be due", 30 * SECOND, || {
        match client.query_one(DUE, &[]).unwrap().get::<_, i64>(0) {
            0 => Ok(()),
            due => Err(due),
        }
    });
}

fn value<T: pg_expiry_tests::postgres::types::FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// How the policy is, for the message of a test that waits in vain.
fn status(client: &mut Client) -> String {
    value(client, "SELECT row_to_json(s)::text FROM expiry.status s")
}

/// Every partition has rows at the same places, some due, some not: a row that is not due is never touched.
#[test]
fn rows_at_the_same_place_in_different_partitions() {
    for layout in &LAYOUTS {
        println!("{}", layout.partitions);
        let db = Db::with_extension();
        let mut client = client(&db, layout);
        // Of each five one is due; which one, is another in each region. Inserted partition by partition, so
        // that the places are the same.
        let fill = |client: &mut Client, from: i64| {
            client.batch_execute(&format!(
                "INSERT INTO bills (id, region, status, pay_by)
                 SELECT id, id % 5, CASE WHEN kind < 3 THEN 'pending' ELSE 'paid' END,
                        CASE WHEN kind IN (0, 3) THEN '2019-12-31'::timestamptz + id % 7 * interval '1 day'
                             ELSE '2101-01-01' END
                 FROM generate_series({from}::bigint, {from} + 299) id, LATERAL (SELECT (id / 5 + id) % 5 AS kind) k
                 ORDER BY id % 5, id"
            )).unwrap();
        };
        fill(&mut client, 1);
        client.batch_execute("CREATE TABLE before AS SELECT *, status = 'pending' AND pay_by <= now() AS is_due FROM bills").unwrap();
        let places =
            "SELECT count(*) FROM (SELECT FROM bills GROUP BY ctid HAVING count(DISTINCT tableoid) > 1
                          AND count(DISTINCT pay_by <= now() AND status = 'pending') = 2) x";
        let shared: i64 = value(&mut client, places);
        assert!(
            shared > 0 || layout.partitions.contains("bills_n PARTITION OF bills DEFAULT"),
            "{shared} shared places"
        );
        client.batch_execute(POLICY).unwrap();
        wait_until_none_is_due(&mut client);
        // And what comes when all has its index and its plans.
        fill(&mut client, 1001);
        client
            .batch_execute("INSERT INTO before SELECT *, (id / 5 + id) % 5 = 0 FROM bills WHERE id > 1000")
            .unwrap();
        wait_until_none_is_due(&mut client);
        let wrong = "SELECT count(*) FROM bills b FULL JOIN before o USING (id, region)
                     WHERE b.status IS DISTINCT FROM CASE WHEN o.is_due THEN 'closed' ELSE o.status END
                        OR b.pay_by IS DISTINCT FROM o.pay_by";
        assert_eq!(value::<i64>(&mut client, wrong), 0, "{}", layout.partitions);
        let events =
            "SELECT count(*) = (SELECT count(*) FROM before WHERE is_due) AND count(DISTINCT key) = count(*)
                          AND bool_and((SELECT is_due FROM before WHERE id = (key->>'id')::bigint))
                      FROM expiry.event WHERE kind = 'cancelled'";
        assert!(value::<bool>(&mut client, events), "{}", layout.partitions);
        let valid = "SELECT string_agg(index_state, ', ') FROM expiry.status";
        assert_eq!(value::<String>(&mut client, valid), "valid");
    }
}

/// Customers move their bills from one partition to another while these become due.
#[test]
fn rows_that_move() {
    let db = Db::with_extension();
    let mut client = client(&db, &LAYOUTS[0]);
    client.batch_execute(POLICY).unwrap();
    wait_for_value(&mut client, "SELECT index_state FROM expiry.status", "valid".to_owned());
    const BILLS: i64 = 600;
    client
        .batch_execute(&format!(
            "INSERT INTO bills SELECT id, id % 3, 'pending', now() + id * interval '4 ms' FROM generate_series(1, {BILLS}) id"
        ))
        .unwrap();
    let moved = AtomicI64::new(0);
    thread::scope(|scope| {
        for mover in 0..3 {
            let (db, moved) = (&db, &moved);
            scope.spawn(move || {
                let mut client = db.connect();
                loop {
                    // Those that are about to become due, or just are; one in three in a longer transaction.
                    let sql = format!(
                        "WITH next AS (SELECT id, region FROM bills WHERE status = 'pending' AND id % 3 = {mover}
                                       ORDER BY pay_by LIMIT 5 FOR UPDATE SKIP LOCKED)
                         UPDATE bills b SET region = (b.region + 1) % 4 FROM next
                         WHERE b.id = next.id AND b.region = next.region AND b.status = 'pending'"
                    );
                    client.batch_execute("BEGIN").unwrap();
                    match client.execute(&sql, &[]) {
                        Ok(rows) => {
                            moved.fetch_add(rows as i64, Ordering::Relaxed);
                        }
                        // Another has moved it: that is PostgreSQL's answer to the customer.
                        Err(error) => assert_eq!(pg_expiry_tests::sqlstate(&error), "40001", "{error:?}"),
                    }
                    client.batch_execute("SELECT pg_sleep(0.002); COMMIT").unwrap_or(());
                    let _ = client.batch_execute("ROLLBACK");
                    let left = "SELECT count(*) FROM bills WHERE status = 'pending'";
                    if value::<i64>(&mut client, left) == 0 {
                        break;
                    }
                    // They would chase each other for ever.
                    if moved.load(Ordering::Relaxed) > 20 * BILLS {
                        break;
                    }
                }
            });
        }
    });
    wait_until_none_is_due(&mut client);
    println!("{} moves", moved.into_inner());
    let closed = "SELECT count(*) FROM bills WHERE status = 'closed'";
    assert_eq!(value::<i64>(&mut client, closed), BILLS);
    let events = "SELECT count(*) FROM expiry.event e JOIN bills b ON b.id = (key->>'id')::bigint
                  AND b.region = (key->>'region')::int WHERE kind = 'cancelled'";
    assert_eq!(value::<i64>(&mut client, events), BILLS);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM expiry.event"), BILLS);
    wait_for_value(&mut client, "SELECT failed FROM expiry.status", 0_i64);
}

/// The function itself moves the row, as the archive of closed bills wants it.
#[test]
fn function_that_moves_the_row() {
    let db = Db::with_extension();
    let mut client = client(&db, &LAYOUTS[0]);
    client
        .batch_execute(&format!(
            "CREATE OR REPLACE FUNCTION close(i bigint, r int) RETURNS void LANGUAGE sql AS
                 $$ UPDATE bills SET status = 'closed', region = 9 WHERE id = i AND region = r $$;
             INSERT INTO bills SELECT id, id % 3, 'pending', now() FROM generate_series(1, 300) id; {POLICY}"
        ))
        .unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM bills_n WHERE status = 'closed'", 300_i64);
    wait_for_value(&mut client, "SELECT cancelled || ' ' || failed FROM expiry.status", "300 0".to_owned());
}

#[test]
fn some_hundreds_of_partitions() {
    const PARTITIONS: i64 = 300;
    let db = Db::with_extension();
    let mut client =
        client(&db, &Layout { partitions: "PARTITION BY RANGE (id)", key: "id", function: BY_ID });
    client
        .batch_execute(&format!(
            "DO $$ BEGIN FOR n IN 0..{PARTITIONS} - 1 LOOP
                 EXECUTE format('CREATE TABLE bills_%s PARTITION OF bills FOR VALUES FROM (%s) TO (%s)', n, n * 10, n * 10 + 10);
             END LOOP; END $$;
             INSERT INTO bills SELECT id, 0, CASE id % 10 WHEN 0 THEN 'pending' ELSE 'paid' END, now()
                 FROM generate_series(0, {PARTITIONS} * 10 - 1) id;
             {POLICY}"
        ))
        .unwrap();
    let wait_for_closed = |client: &mut Client, bills: i64| {
        wait_until("all to be closed", 100 * SECOND, || {
            match value::<i64>(client, "SELECT count(*) FROM bills WHERE status = 'closed'") {
                closed if closed == bills => Ok(()),
                closed => Err((closed, status(client))),
            }
        });
    };
    let begun = std::time::Instant::now();
    wait_for_closed(&mut client, PARTITIONS);
    println!("{:?}", begun.elapsed());
    let indexed = "SELECT count(*) FROM pg_inherits h JOIN pg_index i ON i.indexrelid = h.inhrelid
                   JOIN pg_class p ON p.oid = h.inhparent WHERE p.relname = 'bills_pay_by_expiry_idx' AND i.indisvalid";
    assert_eq!(value::<i64>(&mut client, indexed), PARTITIONS);
    // A row in each, deadlines all over the partitions in no order.
    client
        .batch_execute(
            "UPDATE bills SET status = 'pending', pay_by = now() + id * 7919 % 500 * interval '1 ms' WHERE id % 10 = 5",
        )
        .unwrap();
    wait_for_closed(&mut client, 2 * PARTITIONS);
    wait_for_value(&mut client, "SELECT failed FROM expiry.status", 0_i64);
    client.batch_execute("SELECT expiry.drop_policy('bills')").unwrap();
    let left = "SELECT count(*) FROM pg_class WHERE relname LIKE '%expiry_idx%'";
    wait_for_value(&mut client, left, 0_i64);
}

/// Partitions come and go while the worker is busy in all of them.
#[test]
fn partitions_that_come_and_go() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(&format!(
            "CREATE TABLE bills (id bigint, region int, status text DEFAULT 'pending', pay_by timestamptz NOT NULL,
                                 PRIMARY KEY (id, region)) PARTITION BY LIST (region);
             CREATE TABLE bills_0 PARTITION OF bills FOR VALUES IN (0);
             CREATE TABLE bills_1 PARTITION OF bills FOR VALUES IN (1);
             {BY_KEY}; {POLICY}"
        ))
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT index_state FROM expiry.status", "valid".to_owned());
    let pid = shop.wait_for_worker();
    let (is_over, last) = (AtomicBool::new(false), AtomicI64::new(0));
    let (db, is_over, last) = (&shop.db, &is_over, &last);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = db.connect();
            while !is_over.load(Ordering::Relaxed) {
                // No more than the worker can do, on a busy machine too.
                let first = last.fetch_add(20, Ordering::Relaxed);
                let sql = format!(
                    "INSERT INTO bills SELECT id, id % 2, 'pending', now() FROM generate_series({first} + 1, {first} + 20) id;
                     SELECT pg_sleep(0.1)"
                );
                client.batch_execute(&sql).unwrap();
            }
        });
        let mut client = db.connect();
        client.batch_execute("SET lock_timeout = '10s'").unwrap();
        let result = thread::Builder::new().spawn_scoped(scope, move || {
            for round in 0..4 {
                let before: i64 = value(&mut client, "SELECT count(*) FROM bills WHERE status = 'closed'");
                for sql in [
                    // What is due in a table that comes is cancelled, in one that goes it is not ours any more.
                    "CREATE TABLE bills_2 (LIKE bills INCLUDING ALL)",
                    "INSERT INTO bills_2 SELECT -id, 2, 'pending', now() FROM generate_series(1, 20) id",
                    "ALTER TABLE bills ATTACH PARTITION bills_2 FOR VALUES IN (2)",
                    "CREATE TABLE bills_3 PARTITION OF bills FOR VALUES IN (3) PARTITION BY HASH (id)",
                    "CREATE TABLE bills_30 PARTITION OF bills_3 FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
                    "INSERT INTO bills SELECT id, 3, 'pending', now() + interval '1 hour' FROM generate_series(1, 20) id",
                ] {
                    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
                }
                wait_for_value(&mut client, "SELECT count(*) FROM bills_2 WHERE status = 'closed'", 20_i64);
                for sql in [
                    "INSERT INTO bills SELECT id + 100, 2, 'pending', now() FROM generate_series(1, 1000) id",
                    if round % 2 == 0 {
                        "ALTER TABLE bills DETACH PARTITION bills_2"
                    } else {
                        "ALTER TABLE bills DETACH PARTITION bills_2 CONCURRENTLY"
                    },
                    "UPDATE bills SET pay_by = now() WHERE region = 3",
                    "DROP TABLE bills_3",
                    "INSERT INTO bills_2 SELECT id + 10000, 2, 'pending', now() FROM generate_series(1, 20) id",
                ] {
                    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
                }
                wait_until("the others to be closed meanwhile", 30 * SECOND, || {
                    value::<i64>(&mut client, "SELECT count(*) FROM bills WHERE status = 'closed'") > before + 100
                });
                let left = "SELECT count(*) FROM bills_2 WHERE id > 10000 AND status = 'pending'";
                assert_eq!(value::<i64>(&mut client, left), 20, "rows that were detached");
                // And back it comes with all that is left.
                client
                    .batch_execute("ALTER TABLE bills ATTACH PARTITION bills_2 FOR VALUES IN (2)")
                    .unwrap();
                wait_until("what came back to be closed", 30 * SECOND, || match value::<i64>(&mut client, left) {
                    0 => Ok(()),
                    left => Err((left, status(&mut client))),
                });
                client.batch_execute("DROP TABLE bills_2").unwrap();
            }
        });
        let result = result.unwrap().join();
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    wait_until_none_is_due(&mut shop.client);
    let closed: i64 = shop.value("SELECT count(*) FROM bills WHERE status = 'closed'");
    assert_eq!(closed, last.load(Ordering::Relaxed));
    let events =
        "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled' AND key->>'region' IN ('0', '1')";
    assert_eq!(shop.value::<i64>(events), closed);
    wait_for_value(
        &mut shop.client,
        "SELECT state || ' ' || failed FROM expiry.status",
        "active 0".to_owned(),
    );
    assert_eq!(pg_expiry_tests::worker_pids(&mut shop.client), [pid]);
}

/// What is in the default partition is cancelled too, also when a partition of its own is made for it.
#[test]
fn default_partition() {
    let db = Db::with_extension();
    let mut client = client(&db, &LAYOUTS[5]);
    client.batch_execute(POLICY).unwrap();
    client.batch_execute("INSERT INTO bills SELECT id, id % 4, 'pending', now() + id % 2 * interval '1 hour' FROM generate_series(1, 400) id").unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM bills_n WHERE status = 'closed'", 200_i64);
    client
        .batch_execute(
            "BEGIN;
             CREATE TABLE bills_1 (LIKE bills INCLUDING ALL);
             WITH gone AS (DELETE FROM bills_n WHERE region = 1 RETURNING *) INSERT INTO bills_1 SELECT * FROM gone;
             ALTER TABLE bills ATTACH PARTITION bills_1 FOR VALUES IN (1);
             UPDATE bills SET pay_by = now() WHERE region IN (1, 3);
             COMMIT",
        )
        .unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM bills WHERE status = 'closed'", 400_i64);
    wait_for_value(&mut client, "SELECT count(*) FROM bills_1 WHERE status = 'closed'", 100_i64);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'"), 400);
}
