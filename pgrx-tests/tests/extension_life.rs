//! The extension comes and goes under load (R65): nobody sees a deadlock or an internal error of ours, and nothing
//! is left behind on the users' tables but an index that is an index like any other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Db, Shop, sqlstate, wait_for_value, wait_until, worker_pids};

const SECOND: Duration = Duration::from_secs(1);

/// What can be wrong with a statement while the extension or the policy is not there: nothing else.
const ALLOWED: [&str; 7] = [
    "3F000", // schema "expiry" does not exist
    "42883", // function does not exist
    "42P01", // relation does not exist
    "42704", // policy does not exist
    "42710", // policy, or extension, exists already
    "55000", // policy is paused
    "55P03", // lock timeout of the test's own
];

/// What PostgreSQL itself says of a function that is dropped after a statement's parser has found it, which locks
/// no function.
const DROPPED_WHILE_CALLED: &str = "cache lookup failed for function";

/// Schema and functions of a shop whose server tells the SQLSTATE of each message.
fn shop_that_logs_sqlstates() -> (Cluster, Shop) {
    let cluster = Cluster::builder().setting("log_line_prefix", "%m [%p] %b %d <%e> ").start();
    let shop = Shop::in_database(cluster.create_database());
    (cluster, shop)
}

#[track_caller]
fn assert_log_is_clean(cluster: &Cluster) {
    let log = cluster.log();
    let bad = |line: &&str| {
        line.contains("<40P01>")
            || line.contains("<XX") && !line.contains(DROPPED_WHILE_CALLED)
            || line.contains("PANIC")
    };
    let bad: Vec<&str> = log.lines().filter(bad).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[track_caller]
fn assert_nothing_is_left(shop: &mut Shop) {
    for (what, sql) in [
        // The schema stays, as of every extension whose schema CREATE EXTENSION made; empty.
        ("relations", "SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'expiry')"),
        ("functions", "SELECT count(*) FROM pg_proc WHERE probin LIKE '%pg_expiry%'"),
        ("triggers", "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"),
        ("dependencies", "SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND classid <> 'pg_proc'::regclass
                          AND refclassid = 'pg_extension'::regclass AND refobjid NOT IN (SELECT oid FROM pg_extension)"),
        ("columns", "SELECT count(*) - 5 FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0"),
        ("row security", "SELECT count(*) FROM pg_class WHERE relname IN ('orders', 'stock') AND relrowsecurity"),
        ("invalid indexes", "SELECT count(*) FROM pg_index WHERE NOT indisvalid"),
        ("indexes but one", "SELECT count(*) FROM pg_class WHERE relname LIKE '%expiry_idx_'"),
    ] {
        wait_for_value(&mut shop.client, sql, 0_i64);
        println!("no {what}");
    }
    wait_until("the workers to leave", 10 * SECOND, || worker_pids(&mut shop.client).is_empty());
}

/// Orders that become due all the time, until it is over; each must be insertable.
fn checkout(db: &Db, is_over: &AtomicBool, last: &AtomicI64) {
    let mut client = db.connect();
    while !is_over.load(Ordering::Relaxed) {
        let first = last.fetch_add(5, Ordering::Relaxed) + 1;
        let sql = format!(
            "INSERT INTO orders (id, pay_by) SELECT id, now() + id % 5 * interval '20 ms'
             FROM generate_series({first}, {first} + 4) id; SELECT pg_sleep(0.02)"
        );
        client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

const CREATE_POLICY: &str = "SELECT expiry.create_policy('orders', deadline => 'pay_by',
    predicate => $$status = 'pending'$$, cancel_function => 'cancel_order(bigint)')";

/// R65.
#[test]
fn extension_comes_and_goes_under_load() {
    let (cluster, mut shop) = shop_that_logs_sqlstates();
    shop.client
        .batch_execute(
            "CREATE TABLE dropped (id bigserial, what text, at timestamptz DEFAULT now());
             CREATE FUNCTION note_drops() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO dropped (what) SELECT object_identity FROM pg_event_trigger_dropped_objects();
             END $$;
             CREATE EVENT TRIGGER note_drops ON sql_drop EXECUTE FUNCTION note_drops()",
        )
        .unwrap();
    let (is_over, last) = (AtomicBool::new(false), AtomicI64::new(0));
    let (db, is_over, last) = (&shop.db, &is_over, &last);
    let mut client = db.connect();
    client.batch_execute("SET lock_timeout = '20s'").unwrap();
    let seen: BTreeMap<String, i64> = thread::scope(|scope| {
        scope.spawn(|| checkout(db, is_over, last));
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                scope.spawn(move || {
                    let mut client = db.connect();
                    let mut seen = BTreeMap::new();
                    let calls = [
                        "SELECT expiry.pause('orders')",
                        "SELECT expiry.resume('orders')",
                        "SELECT expiry.alter_policy('orders', batch_size => 50)",
                        "SELECT expiry.drop_policy('orders')",
                        CREATE_POLICY,
                        "SELECT expiry.wake()",
                        "SELECT expiry.resume()",
                        "SELECT count(*) FROM expiry.status",
                        "CALL expiry.run('orders', 20)",
                    ];
                    for n in caller * 2.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let outcome = client.batch_execute(calls[n % calls.len()]);
                        let outcome =
                            outcome.map_err(|error| (sqlstate(&error).to_owned(), format!("{error:?}")));
                        let key = match outcome {
                            Ok(()) => "done".to_owned(),
                            Err((sqlstate, _)) if ALLOWED.contains(&&*sqlstate) => sqlstate,
                            Err((_, error)) if error.contains(DROPPED_WHILE_CALLED) => "42883".to_owned(),
                            Err((sqlstate, error)) => {
                                format!("{sqlstate} {error} in {}", calls[n % calls.len()])
                            }
                        };
                        *seen.entry(key).or_insert(0) += 1;
                        client.batch_execute("SELECT pg_sleep(0.005)").unwrap();
                    }
                    seen
                })
            })
            .collect();
        let result = thread::Builder::new().spawn_scoped(scope, move || {
            come_and_go(&mut client);
        });
        let result = result.unwrap().join();
        is_over.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for caller in callers {
            for (key, n) in caller.join().unwrap() {
                *all.entry(key).or_insert(0) += n;
            }
        }
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        all
    });
    println!("{seen:?}");
    let strange: Vec<_> =
        seen.iter().filter(|(key, _)| *key != "done" && !ALLOWED.contains(&key.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert!(seen["done"] > 50, "{seen:?}");

    // And it works still.
    shop.client.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_expiry").unwrap();
    shop.client
        .batch_execute(CREATE_POLICY)
        .or_else(|_| shop.client.batch_execute("SELECT expiry.resume('orders')"))
        .unwrap();
    let pending = "SELECT count(*) FROM orders WHERE status = 'pending'";
    wait_until("all to be cancelled", 60 * SECOND, || shop.value::<i64>(pending) == 0);
    let cancelled: i64 = shop.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
    let qty: i32 = shop.value("SELECT qty FROM stock WHERE sku = 1");
    assert_eq!((cancelled, i64::from(qty) - 1_000_000), (last.load(Ordering::Relaxed), cancelled));

    shop.client.batch_execute("DROP EXTENSION pg_expiry").unwrap();
    assert_nothing_is_left(&mut shop);
    shop.due(last.load(Ordering::Relaxed) + 1, SECOND);
    assert!(shop.value::<i64>("SELECT count(*) FROM dropped WHERE what = 'pg_expiry'") >= 20);
    assert_log_is_clean(&cluster);
}

fn come_and_go(client: &mut Client) {
    let cancelled = |client: &mut Client| -> i64 {
        client.query_one("SELECT count(*) FROM orders WHERE status = 'cancelled'", &[]).unwrap().get(0)
    };
    for round in 0..20 {
        let drop =
            if round % 2 == 0 { "DROP EXTENSION pg_expiry" } else { "DROP EXTENSION pg_expiry CASCADE" };
        let create = format!("CREATE EXTENSION pg_expiry; {CREATE_POLICY}");
        let statements = match round % 5 {
            0 => vec!["CREATE EXTENSION pg_expiry".to_owned(), CREATE_POLICY.to_owned(), drop.to_owned()],
            1 => vec![
                format!("BEGIN; {create}; ROLLBACK"),
                format!("BEGIN; {create}; COMMIT"),
                drop.to_owned(),
            ],
            2 => vec![create.clone(), format!("BEGIN; {drop}; ROLLBACK"), drop.to_owned()],
            3 => vec![create.clone(), format!("BEGIN; {drop}; {create}; ROLLBACK"), drop.to_owned()],
            _ => vec![create.clone(), format!("BEGIN; {drop}; {create}; COMMIT"), drop.to_owned()],
        };
        for sql in statements {
            if sql == drop {
                // Not before it has worked.
                let before = cancelled(client);
                wait_until("orders to be cancelled", 60 * SECOND, || {
                    // Another session may just have dropped or paused the policy.
                    cancelled(client) > before
                });
            }
            match client.batch_execute(&sql) {
                Ok(()) => {}
                // Another session was first to make the policy; then this one has rolled back.
                Err(error) if sqlstate(&error) == "42710" => {
                    client.batch_execute("ROLLBACK; CREATE EXTENSION IF NOT EXISTS pg_expiry").unwrap();
                }
                Err(error) => panic!("{sql}: {error:?}"),
            }
        }
    }
}

/// Our index stays with the table when the extension goes: it is an index like any other, and is used again.
#[test]
fn index_stays_when_the_extension_goes() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    let index = "SELECT 'orders_pay_by_expiry_idx'::regclass::oid";
    let before: u32 = shop.value(index);
    shop.client.batch_execute("DROP EXTENSION pg_expiry").unwrap();
    assert_nothing_is_left(&mut shop);
    shop.due(1, SECOND);
    assert_eq!(shop.value::<u32>(index), before);
    shop.client.batch_execute("CREATE EXTENSION pg_expiry").unwrap();
    shop.create_policy("");
    shop.wait_for_cancelled(1);
    shop.assert_invariant();
    assert_eq!(shop.value::<u32>(index), before);
    // Whoever wants it away drops the policies first; or the index.
    shop.client
        .batch_execute("SELECT expiry.drop_policy('orders'); DROP INDEX orders_pay_by_expiry_idx")
        .unwrap();
}
