//! `CALL expiry.run()`: the worker's pass in one's own session, also without preload.

use std::time::Duration;

use pg_expiry_tests::serde_json::json;
use pg_expiry_tests::{Cluster, Shop};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn pass_by_hand_does_what_the_worker_does() {
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.client.batch_execute("CREATE INDEX ON orders (pay_by) WHERE status = 'pending'").unwrap();
    shop.create_policy("");
    shop.due(1, SECOND);
    shop.order(2, 3600 * SECOND);
    let mut listener = shop.listen();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(listener.next(SECOND).json["key"], json!({ "id": "1" }));
    assert_eq!(shop.status(2), "pending");
    shop.assert_invariant();
}
