//! Settings: followed by running workers, whole, and not to be changed where nobody would follow.

use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, db_error, wait_for_value};

/// R62: what a session would set, no worker would see; so it is refused and not ignored.
#[test]
fn setting_of_a_session_is_refused() {
    let mut shop = Shop::without_policy();
    let settings = "SELECT name, setting FROM pg_settings WHERE name LIKE 'pg\\_expiry.%' ORDER BY name";
    let settings = shop.client.query(settings, &[]).unwrap();
    assert!(settings.len() >= 19, "{}", settings.len());
    for setting in settings {
        let (name, value): (&str, &str) = (setting.get(0), setting.get(1));
        for sql in [
            format!("SET {name} = '{value}'"),
            format!("SET LOCAL {name} = '{value}'"),
            format!("SELECT set_config('{name}', '{value}', false)"),
        ] {
            assert_eq!(db_error(shop.client.batch_execute(&sql)).code().code(), "55P02", "{sql}");
        }
        let mut config = shop.db.endpoint.config(&shop.db.name, "postgres");
        let result = config.options(&format!("-c {name}={value}")).connect(pg_expiry_tests::postgres::NoTls);
        assert_eq!(db_error(result.map(drop)).code().code(), "55P02", "{name}");
    }
    assert_eq!(db_error(shop.client.batch_execute("SET pg_expiry.unheard_of = 1")).code().code(), "42602");
}

/// R62: thousands of reloads under load, with a long value that changes: every notification goes to the
/// one channel or the other, and the worker lives.
#[test]
fn value_is_whole_however_often_it_is_reloaded() {
    const ORDERS: i64 = 600;
    let channels = ["a", "b"].map(|letter| letter.repeat(63));
    let cluster = Cluster::builder().setting("pg_expiry.channel", &channels[0]).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    let pid = shop.wait_for_worker();
    let mut listeners = [shop.db.listen(&channels[0]), shop.db.listen(&channels[1])];
    for round in 0..ORDERS / 10 {
        shop.fill(round * 10 + 1..=round * 10 + 10, "now() + id * interval '1 ms'");
        let channel = &channels[usize::try_from(round % 2).unwrap()];
        shop.client.batch_execute(&format!("ALTER SYSTEM SET pg_expiry.channel = '{channel}'")).unwrap();
        shop.client.batch_execute("SELECT pg_reload_conf() FROM generate_series(1, 100)").unwrap();
        if round == 0 {
            // All the others may come before the worker looks again.
            shop.wait_for_cancelled(10);
        }
    }
    shop.wait_for_cancelled(ORDERS);
    let heard = listeners.each_mut().map(|listener| listener.drain().len() as i64);
    assert_eq!(heard.iter().sum::<i64>(), ORDERS, "{heard:?}");
    assert!(heard.iter().all(|heard| *heard > 0), "{heard:?}");
    assert_eq!(shop.wait_for_worker(), pid);
    // The last word counts, within a second.
    cluster.set("pg_expiry.channel", &channels[1]);
    cluster.set("pg_expiry.lookahead", "50ms");
    wait_for_value(
        &mut shop.client,
        "SELECT last_pass > now() - interval '200 ms' FROM expiry.workers",
        true,
    );
    shop.fill(ORDERS + 1..=ORDERS + 1, "now()");
    assert_eq!(listeners[1].next(Duration::from_secs(10)).channel, channels[1]);
    shop.assert_invariant();
}
