//! A copy of the whole server goes on like the server itself, since nothing tells it from a failover; the
//! documented setting holds it.

use std::fs;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Shop, eventually, scratch_folder, wait_until};

use super::original::{Original, SECOND, assert_went_on};

const OFF: (&str, &str) = ("pg_expiry.enabled", "off");

/// Its worker is there, has looked, and has done nothing.
#[track_caller]
fn assert_is_held(client: &mut Client, original: &Original) {
    let looked = "SELECT count(*) FROM expiry.workers WHERE last_pass > (SELECT pg_postmaster_start_time())";
    wait_until("a worker that has looked", 30 * SECOND, || {
        client.query_one(looked, &[]).unwrap().get::<_, i64>(0) == 1
    });
    eventually(client, "SELECT string_agg(DISTINCT state, ' ') FROM expiry.status", "disabled".to_owned());
    let new =
        format!("SELECT count(*) FROM expiry.events_after({}) WHERE kind = 'cancelled'", original.last_id);
    assert_eq!(client.query_one(&new, &[]).unwrap().get::<_, i64>(0), 0);
    eventually(client, "SELECT count(*) FROM orders WHERE status = 'pending'", 48_i64);
}

/// R57.
#[test]
fn base_backup_is_held_by_a_setting() {
    let cluster = Cluster::start();
    let original = Original::in_database(cluster.create_database());
    let name = original.shop.db.name.clone();
    let copy = cluster.base_backup(&[], &[OFF]);
    copy.start_again();
    let mut client = copy.connect(&name);
    assert_is_held(&mut client, &original);
    // Pausing makes it last; then the setting may go.
    client.batch_execute("SELECT expiry.pause()").unwrap();
    copy.set("pg_expiry.enabled", "on");
    eventually(&mut client, "SELECT string_agg(DISTINCT state, ' ') FROM expiry.status", "paused".to_owned());
    eventually(&mut client, "SELECT count(*) FROM orders WHERE status = 'pending'", 48_i64);
    client.batch_execute("SELECT expiry.resume()").unwrap();
    assert_went_on(&mut client, &original);
}

/// R57: back to a point at which the rows were due and not cancelled yet.
#[test]
fn restored_to_a_point_in_time() {
    let archive = scratch_folder("archive");
    let cluster = Cluster::builder()
        .setting("archive_mode", "on")
        .setting("archive_command", &format!("cp %p {}/%f", archive.display()))
        .start();
    let mut original = Original::in_database(cluster.create_database());
    let shop: &mut Shop = &mut original.shop;
    let restore = format!("cp {}/%f %p", archive.display());
    let settings = [
        OFF,
        ("archive_mode", "off"),
        ("restore_command", &restore),
        ("recovery_target_name", "before"),
        ("recovery_target_action", "promote"),
    ];
    let copy = cluster.base_backup(&["--wal-method=none"], &settings);
    fs::write(copy.data().join("recovery.signal"), "").unwrap();
    shop.client
        .batch_execute("SELECT pg_create_restore_point('before'); SELECT expiry.start_workers()")
        .unwrap();
    shop.wait_for_cancelled(50);
    let last: String = shop.value("SELECT pg_walfile_name(pg_current_wal_lsn())");
    shop.client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until("the last segment to be archived", 60 * SECOND, || archive.join(&last).exists());

    copy.start_again();
    let mut client = copy.connect(&shop.db.name);
    wait_until("the end of recovery", 60 * SECOND, || {
        !client.query_one("SELECT pg_is_in_recovery()", &[]).unwrap().get::<_, bool>(0)
    });
    assert_is_held(&mut client, &original);
    copy.set("pg_expiry.enabled", "on");
    assert_went_on(&mut client, &original);
}
