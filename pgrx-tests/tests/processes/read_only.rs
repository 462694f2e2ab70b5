//! A server whose transactions are read-only by default, as some make theirs before they move it (R59).

use pg_expiry_tests::{Cluster, wait_for_value, wait_until};

use super::common::{SECOND, complaints, is_ended, shop_on, wait_for_index, worker};

/// It is a default for users: our processes say what they want, also those that start later, and nobody
/// complains.
#[test]
fn read_only_by_default_is_no_hindrance() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    wait_for_index(&mut shop);
    let pid = worker(&mut shop.client);
    let log = cluster.log().len();
    cluster.set("default_transaction_read_only", "on");
    wait_for_value(&mut shop.client, "SHOW default_transaction_read_only", "on".to_owned());
    let writable = "SET default_transaction_read_only = off";
    shop.client.batch_execute(writable).unwrap();
    shop.due(1, SECOND);
    shop.wait_for_cancelled(1);
    assert_eq!(worker(&mut shop.client), pid);

    // A worker, a scout and a builder that begin under it.
    shop.client.batch_execute("SELECT expiry.stop_workers(); DROP INDEX orders_pay_by_expiry_idx").unwrap();
    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    shop.due(2, SECOND);
    shop.wait_for_cancelled(2);
    shop.client.batch_execute("DROP EXTENSION pg_expiry; CREATE EXTENSION pg_expiry").unwrap();
    shop.create_policy("");
    shop.due(3, SECOND);
    shop.wait_for_cancelled(3);

    // What a user calls in a session that is read-only is refused as any write is; a look is not.
    let mut client = shop.db.connect();
    for sql in [
        "SELECT expiry.pause('orders')",
        "SELECT expiry.drop_policy('orders')",
        "SELECT expiry.retry('orders')",
    ] {
        assert_eq!(pg_expiry_tests::db_error(client.batch_execute(sql)).code().code(), "25006", "{sql}");
    }
    client.batch_execute("SELECT * FROM expiry.status; SELECT * FROM expiry.preview('orders')").unwrap();
    client.batch_execute("SELECT expiry.wake()").unwrap();
    let ours = |line: &String| {
        line.contains("pg_expiry worker")
            || line.contains("pg_expiry launcher")
            || line.contains("pg_expiry index")
            || line.contains("pg_expiry scout")
    };
    // DROP EXTENSION ends who is in the middle of something, which says so, as all do.
    let complaints: Vec<String> =
        complaints(&cluster, log).into_iter().filter(|line| ours(line) && !is_ended(line)).collect();
    assert_eq!(complaints, [""; 0]);
    wait_until("nothing to be due", 10 * SECOND, || {
        shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") == 0
    });
}
