//! A long report, or a forgotten transaction: nothing dead can be removed meanwhile.

use std::time::Duration;

use pg_expiry_tests::{Shop, wait_until};

const ORDERS: i64 = 100_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// R38: a claim does not walk over what the claims before it have left dead in the deadline index, so that the
/// last batches cost no more than the first ones. Counted in pages of the index.
#[test]
fn claims_do_not_walk_over_dead_entries() {
    // The look below the floor is made once.
    let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "1min")]);
    // No stock: its dead versions are the cancel function's own affair.
    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    shop.create_policy(", batch_size => 500");
    shop.wait_for_index();
    shop.client.batch_execute("SELECT expiry.pause()").unwrap();
    shop.fill(1..=ORDERS, "now() - interval '1 h' + id * interval '1 ms'");
    shop.client.batch_execute("ANALYZE orders; SELECT pg_stat_force_next_flush()").unwrap();
    let mut old = shop.db.connect();
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM orders").unwrap();
    let index = "i.indrelid = 'orders'::regclass AND i.indpred IS NOT NULL";
    let touched = format!(
        "SELECT (idx_blks_read + idx_blks_hit)::bigint FROM pg_statio_user_indexes JOIN pg_index i USING (indexrelid)
         WHERE {index}"
    );
    let size = format!("SELECT pg_relation_size(i.indexrelid) / 8192 FROM pg_index i WHERE {index}");
    let before: i64 = shop.value(&touched);

    shop.client.batch_execute("SELECT expiry.resume()").unwrap();
    wait_until("the backlog to be gone", PATIENCE, || {
        match shop.value::<i64>("SELECT count(*) FROM expiry.event") {
            ORDERS => Ok(()),
            done => Err(done),
        }
    });
    // A worker tells what it has touched when it has nothing to do.
    let pages: i64 = shop.value(&size);
    let batches: i64 = shop.value("SELECT count(DISTINCT xmin::text) FROM expiry.event");
    wait_until("the worker's statistics", PATIENCE, || match shop.value::<i64>(&touched) - before {
        some if some >= pages => Ok(()),
        few => Err(few),
    });
    let touched = shop.value::<i64>(&touched) - before;
    println!("{touched} pages in {batches} batches, of an index of {pages}");
    // Those of its own rows, the way down from the root, and one more at each end.
    assert!(
        touched <= 2 * pages + 8 * batches,
        "{touched} pages in {batches} batches, of an index of {pages}"
    );
    assert!(batches * pages / 2 > 5 * (2 * pages + 8 * batches), "{batches} batches prove nothing");
    let seen: i64 =
        old.query_one("SELECT count(*) FROM orders WHERE status = 'pending'", &[]).unwrap().get(0);
    assert_eq!(seen, ORDERS, "the snapshot was held all the time");
}
