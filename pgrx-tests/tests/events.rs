//! Reading events by id: what one gets, what one does not see, what is refused.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::serde_json::{Value, json};
use pg_expiry_tests::{Shop, db_error, wait_until};

use super::tenants::Tenants;

const SECOND: Duration = Duration::from_secs(1);

#[track_caller]
pub fn assert_refused(client: &mut Client, sql: &str, sqlstate: &str) {
    let error = db_error(client.simple_query(sql));
    assert_eq!(error.code().code(), sqlstate, "{sql}: {}", error.message());
}

fn ids(client: &mut Client, sql: &str) -> Vec<i64> {
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn events_after_gives_what_is_new_in_order() {
    let mut tenants = Tenants::new(2, "");
    tenants.fill(0, 1..=5, "now()");
    tenants.fill(1, 1..=5, "now()");
    wait_until("ten events", 10 * SECOND, || tenants.value::<i64>("SELECT count(*) FROM expiry.event") == 10);
    let name = tenants.names[0].clone();
    let client = &mut tenants.superuser;
    let all = ids(client, "SELECT id FROM expiry.event ORDER BY id");
    // As it comes out of the function, not sorted by us.
    assert_eq!(ids(client, "SELECT id FROM expiry.events_after(0)"), all);
    assert_eq!(ids(client, "SELECT id FROM expiry.events_after(0, 3)"), all[..3]);
    assert_eq!(ids(client, "SELECT id FROM expiry.events_after(0, 0)"), [0; 0]);
    assert_eq!(ids(client, &format!("SELECT id FROM expiry.events_after({})", all[3])), all[4..]);
    assert_eq!(ids(client, &format!("SELECT id FROM expiry.events_after({})", all[9])), [0; 0]);
    let of_one = ids(client, &format!("SELECT id FROM expiry.event WHERE policy = '{name}' ORDER BY id"));
    assert_eq!(of_one.len(), 5);
    assert_eq!(ids(client, &format!("SELECT id FROM expiry.events_after(0, name => '{name}')")), of_one);
    // Page after page.
    let (mut last, mut read) = (0, Vec::new());
    while let Some(page) = Some(ids(client, &format!("SELECT id FROM expiry.events_after({last}, 3)")))
        && let Some(newest) = page.last()
    {
        last = *newest;
        read.extend(page);
    }
    assert_eq!(read, all);
}

#[test]
fn events_after_refuses_what_makes_no_sense() {
    let mut shop = Shop::new();
    let client = &mut shop.client;
    for id in ["-1", "NULL", "1", "9223372036854775807"] {
        assert_refused(client, &format!("SELECT * FROM expiry.events_after({id})"), "22023");
    }
    for rows in ["-1", "NULL"] {
        assert_refused(client, &format!("SELECT * FROM expiry.events_after(0, {rows})"), "22023");
    }
    assert_refused(client, "SELECT * FROM expiry.events_after(0, name => 'nonesuch')", "42704");
    assert_eq!(ids(client, "SELECT id FROM expiry.events_after(0)"), [0; 0]);
    shop.fill(1..=1, "now()");
    shop.settle();
    let last: i64 = shop.value("SELECT max(id) FROM expiry.event");
    let client = &mut shop.client;
    assert_eq!(ids(client, &format!("SELECT id FROM expiry.events_after({last})")), [0; 0]);
    let sql = format!("SELECT * FROM expiry.events_after({})", last + 1);
    let error = db_error(client.simple_query(&sql));
    assert_eq!(error.code().code(), "22023");
    assert!(error.detail().unwrap().contains(&format!("is {last}.")), "{error:?}");
    assert!(error.hint().is_some());
    assert_refused(client, &format!("BEGIN READ ONLY; {sql}; COMMIT"), "22023");
}

/// Reading what somebody else's policies have done: nothing, by no way there is.
#[test]
fn events_of_other_owners_are_not_seen() {
    let mut tenants = Tenants::new(2, ", notify => 'off'");
    tenants.fill(0, 1..=5, "now()");
    wait_until("five events", 10 * SECOND, || tenants.value::<i64>("SELECT count(*) FROM expiry.event") == 5);
    let mut owner = tenants.connect(0);
    assert_eq!(ids(&mut owner, "SELECT id FROM expiry.events_after(0)").len(), 5);
    assert_eq!(owner.query("SELECT FROM expiry.event", &[]).unwrap().len(), 5);

    let mut other = tenants.connect(1);
    let name = tenants.names[0].clone();
    assert_eq!(ids(&mut other, "SELECT id FROM expiry.events_after(0)"), [0; 0]);
    assert_eq!(ids(&mut other, "SELECT id FROM expiry.event"), [0; 0]);
    assert_refused(&mut other, &format!("SELECT * FROM expiry.events_after(0, name => '{name}')"), "42704");
    other.batch_execute("SELECT expiry.subscribe('spy', after => 0)").unwrap();
    assert_eq!(ids(&mut other, "SELECT id FROM expiry.fetch_events('spy')"), [0; 0]);
    assert_eq!(other.query_one("SELECT lag FROM expiry.consumers", &[]).unwrap().get::<_, &str>(0), "0");
    assert_refused(&mut other, &format!("SELECT expiry.subscribe('spy2', '{name}')"), "42501");
    for sql in [
        "INSERT INTO expiry.event SELECT * FROM expiry.event",
        "UPDATE expiry.event SET id = id",
        "DELETE FROM expiry.event",
        "SELECT nextval('expiry.event_id_seq')",
    ] {
        assert_refused(&mut other, sql, "42501");
    }
    // Whoever tries to go round row security gets an error, not rows.
    assert_refused(&mut other, "SET row_security = off; SELECT * FROM expiry.events_after(0)", "42501");
    other.batch_execute("RESET row_security").unwrap();
    // Functions of his that leak what they are shown are shown nothing.
    other
        .batch_execute(
            "CREATE FUNCTION tell(e bigint) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
                 $$ BEGIN RAISE EXCEPTION 'event %', e; END $$",
        )
        .unwrap();
    assert_eq!(ids(&mut other, "SELECT id FROM expiry.event WHERE tell(id)"), [0; 0]);
    // Waiting does not tell him either.
    other.batch_execute("CALL expiry.wait_for_events(0, '100 ms')").unwrap();

    // Who may act for the owner, and pg_monitor, see them.
    let (low, high) = (tenants.names[1].clone(), tenants.names[0].clone());
    tenants.superuser.batch_execute(&format!("GRANT {high} TO {low}")).unwrap();
    assert_eq!(ids(&mut other, "SELECT id FROM expiry.fetch_events('spy')").len(), 5);
    tenants.superuser.batch_execute(&format!("REVOKE {high} FROM {low}; GRANT pg_monitor TO {low}")).unwrap();
    assert_eq!(ids(&mut other, "SELECT id FROM expiry.events_after(0)").len(), 5);
}

/// What the notification says and what the table has are the same record; `stated_deadline` and `data` too.
#[test]
fn record_is_the_same_pushed_and_read() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE FUNCTION cancel_with_data(k bigint) RETURNS jsonb LANGUAGE sql AS
                 $$ UPDATE orders SET status = 'cancelled' WHERE id = k RETURNING jsonb_build_object('refund', 12.50, 'big', 9007199254740993) $$;
             SELECT expiry.create_policy('orders', deadline => 'pay_by', timeout => '90 s', predicate => $$status = 'pending'$$,
                 cancel_function => 'cancel_with_data(bigint)')",
        )
        .unwrap();
    let mut listener = shop.listen();
    // Beyond what JavaScript can count to.
    shop.fill(9_007_199_254_740_993..=9_007_199_254_740_993, "now() - interval '90 s'");
    let heard = listener.next(10 * SECOND);
    assert_eq!(heard.json["key"], json!({ "id": "9007199254740993" }));
    assert!(heard.payload.contains(r#""big": 9007199254740993"#), "{}", heard.payload);
    let times =
        |field: &str| format!("to_char({field} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')");
    let sql = format!(
        "SELECT jsonb_build_object('v', 1, 'id', id, 'policy', policy, 'kind', kind, 'key', key, 'data', data,
             'deadline', {}, 'stated_deadline', {}, 'occurred_at', {}) FROM expiry.event",
        times("deadline"),
        times("stated_deadline"),
        times("occurred_at")
    );
    let mut read: Value = shop.value(&sql);
    read["lateness_ms"] = heard.json["lateness_ms"].clone();
    assert_eq!(heard.json, read);
    let lateness: f64 = shop.value("SELECT extract(epoch FROM lateness)::float8 * 1000 FROM expiry.event");
    assert!((heard.json["lateness_ms"].as_f64().unwrap() - lateness).abs() < 0.001);
    let timeout = "SELECT deadline - stated_deadline = interval '90 s' FROM expiry.event";
    assert!(shop.value::<bool>(timeout));
}
