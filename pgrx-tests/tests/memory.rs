//! R71: a worker that has done much is no larger than one that has done little.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::{Shop, rss_anon_kb, wait_for_value, wait_until};

/// Five hundred: each commit makes the worker look; the next one comes when it has. What it finds is nothing.
const IDLE_PASSES: &str = "DO $$
DECLARE
    seen timestamptz;
    before timestamptz := '-infinity';
BEGIN
    FOR pass IN 1..500 LOOP
        PERFORM expiry.wake();
        COMMIT;
        LOOP
            SELECT last_pass INTO seen FROM expiry.workers WHERE database = current_database();
            EXIT WHEN seen > before;
            PERFORM pg_sleep(0.001);
        END LOOP;
        before := seen;
    END LOOP;
END $$";

fn idle_passes(shop: &mut Shop, passes: usize) {
    for _ in 0..passes / 500 {
        shop.client.batch_execute(IDLE_PASSES).unwrap();
    }
}

const FORMS: [&str; 3] = [
    "CREATE FUNCTION expire(o_id bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
         UPDATE orders SET status = 'cancelled' WHERE id = o_id; END $$",
    "CREATE FUNCTION expire(o_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
         UPDATE orders SET status = 'cancelled' WHERE id = ANY (o_ids); END $$",
    "CREATE FUNCTION expire(o orders) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
         UPDATE orders SET status = 'cancelled' WHERE id = o.id; RETURN to_jsonb(o); END $$",
];

fn wait_for_all(shop: &mut Shop) {
    wait_until("all to be cancelled", Duration::from_secs(120), || {
        match shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") {
            0 => Ok(()),
            left => Err(left),
        }
    });
}

/// Issue 2: after 100,000 cancellations and 10,000 idle passes as after 1,000, within 2 MB.
#[test]
fn worker_does_not_grow() {
    let grown_by_kb = |form: &str| {
        let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "10ms")]);
        shop.client.batch_execute(form).unwrap();
        shop.client
            .batch_execute(
                // The first thousand has batches of the size that all others have.
                "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                     cancel_function => 'expire', batch_size => 100)",
            )
            .unwrap();
        shop.fill(1..=1000, "now()");
        wait_for_all(&mut shop);
        let pid = shop.wait_for_worker();
        idle_passes(&mut shop, 1000);
        let before = rss_anon_kb(pid);
        for hundred in 1..=10 {
            shop.fill(hundred * 10_000..=hundred * 10_000 + 9_999, "now()");
            wait_for_all(&mut shop);
        }
        idle_passes(&mut shop, 10_000);
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 101_000);
        assert_eq!(shop.wait_for_worker(), pid, "another worker proves nothing");
        println!("from {before} kB to {} kB: {form}", rss_anon_kb(pid));
        rss_anon_kb(pid).saturating_sub(before)
    };
    let grown_by_kb: Vec<u64> = thread::scope(|scope| {
        let shops: Vec<_> = FORMS.map(|form| scope.spawn(move || grown_by_kb(form))).into();
        shops.into_iter().map(|shop| shop.join().unwrap()).collect()
    });
    assert!(grown_by_kb.iter().all(|kb| *kb <= 2048), "grown by {grown_by_kb:?} kB");
}

/// The same for what goes wrong: what grows with failing rows grows with each five hundred of them.
#[test]
fn worker_does_not_grow_by_failures() {
    let mut shop = Shop::without_policy();
    shop.replace_cancel_order(
        "IF order_id % 2 = 0 THEN RAISE 'no' USING DETAIL = repeat('x', 10000); END IF;
         UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.create_policy(", retry_delay => '1 h'");
    let pid = shop.wait_for_worker();
    let mut fail = |first: i64, rows: i64| {
        shop.fill(first..=first + 2 * rows - 1, "now()");
        wait_until(format_args!("{rows} failures"), Duration::from_secs(120), || {
            match shop.value::<i64>("SELECT count(*) FROM expiry.failure") {
                failed if failed == rows => Ok(()),
                failed => Err(failed),
            }
        });
        // Who has left the due set is forgotten.
        shop.client.batch_execute("DELETE FROM orders").unwrap();
        wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 0_i64);
        assert_eq!(shop.wait_for_worker(), pid, "another worker proves nothing");
        rss_anon_kb(pid)
    };
    let mut sizes = vec![fail(1, 500)];
    sizes.extend((1..=3).map(|round| fail(10_000 * round, 500)));
    println!("{sizes:?} kB");
    let mut grown_by_kb: Vec<u64> = sizes.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    grown_by_kb.sort_unstable();
    // One jump is no leak: most rounds must do without.
    assert!(grown_by_kb[1] <= 512, "{sizes:?} kB");
}
