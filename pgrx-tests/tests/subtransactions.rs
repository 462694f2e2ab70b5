//! R69: over 64 subtransactions in one transaction slow down every session that reads their rows.

use pg_expiry_tests::{Shop, wait_for_value};

/// Each call writes in so many subtransactions.
fn function(blocks: usize) -> String {
    let block = "BEGIN INSERT INTO note VALUES (o_id); EXCEPTION WHEN division_by_zero THEN NULL; END;";
    format!(
        "CREATE TABLE note (order_id bigint);
         CREATE FUNCTION expire(o_id bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             UPDATE orders SET status = 'cancelled' WHERE id = o_id; {} END $$",
        block.repeat(blocks)
    )
}

/// A cancel function may catch errors as it likes: batches are as small as that takes, and as large as
/// ever where it does not.
#[test]
fn batches_stay_below_the_subtransactions_that_a_backend_can_cache() {
    for (blocks, longest) in [(0, 10_000), (1, 64), (3, 21)] {
        let mut shop = Shop::with_settings(&[("pg_expiry.target_batch_time", "1min")]);
        shop.client.batch_execute(&function(blocks)).unwrap();
        shop.fill(1..=1500, "now()");
        shop.client
            .batch_execute(
                "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                     cancel_function => 'expire', batch_size => 500)",
            )
            .unwrap();
        wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 1500_i64);
        let batches = "SELECT count(*) FROM expiry.event GROUP BY xmin::text ORDER BY min(id)";
        let batches = shop.client.query(batches, &[]).unwrap();
        let batches: Vec<i64> = batches.iter().map(|row| row.get(0)).collect();
        assert_eq!(batches.iter().sum::<i64>(), 1500);
        // The first batch is a guess.
        assert!(batches[1..].iter().all(|rows| *rows <= longest), "{blocks} blocks: {batches:?}");
        assert!(batches[0] <= 64, "{batches:?}");
        if blocks == 0 {
            assert!(batches.contains(&500), "{batches:?}");
        }
    }
}
