//! What NOTIFY carries.

use std::iter::repeat_n;

use chrono::{DateTime, Utc};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::decisions::payload::{Event, LIMIT, one, packed, rfc3339};

/// From 1970 to 2000, where PostgreSQL's microseconds begin.
const EPOCH_OFFSET_US: i64 = 946_684_800_000_000;

/// Text as PostgreSQL can hold it (no NUL), of up to `longest` characters, with what needs escapes.
fn text(longest: usize) -> impl Strategy<Value = String> {
    let character = prop_oneof![
        4 => prop::char::range('a', 'z'),
        2 => prop::sample::select(vec!['"', '\\', '/', '\n', '\t', '\r', '\u{1}', '\u{7f}', '\u{2028}', '\'']),
        2 => prop::sample::select(vec!['é', '中', '🍊', '𝄞', '\u{10ffff}']),
        1 => any::<char>().prop_filter("NUL", |c| *c != '\0'),
    ];
    let run = (character, 1_usize..600);
    prop::collection::vec(run, 0..20).prop_map(move |runs| {
        runs.into_iter().flat_map(|(character, times)| repeat_n(character, times)).take(longest).collect()
    })
}

fn event<'a>(id: i64, policy: &'a str, key: &'a str, data: Option<&'a str>) -> Event<'a> {
    Event {
        id,
        policy,
        kind: "cancelled",
        key,
        deadline_us: Some(0),
        stated_deadline_us: None,
        occurred_at_us: 1_500,
        data,
    }
}

proptest! {
    #[test]
    fn record_fits_a_notification_whatever_the_row_holds(
        id: i64, policy in text(15), key in text(9000), data in prop::option::of(text(9000)),
        deadline_us in prop::option::of(any::<i64>()), stated_us in prop::option::of(any::<i64>()), occurred_at_us: i64,
    ) {
        let (key, data) = (json!({ "id": key }), data.map(|text| json!({ "text": [text] })));
        let (key_json, data_json) = (key.to_string(), data.as_ref().map(Value::to_string));
        let whole = Event {
            deadline_us, stated_deadline_us: stated_us, occurred_at_us,
            ..event(id, &policy, &key_json, data_json.as_deref())
        };
        let payload = one(&whole);
        prop_assert!(payload.len() < 8000, "{} bytes", payload.len());
        let record: Value = serde_json::from_str(&payload).expect("JSON");
        prop_assert_eq!(&record["v"], &json!(1));
        prop_assert_eq!(&record["id"], &json!(id));
        prop_assert_eq!(&record["policy"], &json!(policy));
        prop_assert_eq!(&record["kind"], &json!("cancelled"));
        // What is there is right, and what is not there says so.
        let left_out = |name: &str| record.get(format!("{name}_omitted")) == Some(&json!(true));
        prop_assert_eq!(&record["key"], if left_out("key") { &Value::Null } else { &key });
        let data = data.unwrap_or(Value::Null);
        prop_assert_eq!(&record["data"], if left_out("data") { &Value::Null } else { &data });
        // Nothing is left out without need.
        let room = 7000;
        prop_assert!(!left_out("key") || key_json.len() > room);
        prop_assert!(!left_out("data") || key_json.len() + data_json.map_or(0, |json| json.len()) > room);
    }

    #[test]
    fn packets_lose_and_reorder_nothing(
        lengths in prop::collection::vec(prop_oneof![3 => 1_usize..400, 1 => 3000_usize..9000], 0..120),
    ) {
        let records: Vec<String> = (0..).zip(&lengths)
            .map(|(id, length)| one(&event(id, "orders", &json!({ "id": "x".repeat(*length) }).to_string(), None)))
            .collect();
        let packets = packed(&records);
        let mut ids = Vec::new();
        for packet in &packets {
            prop_assert!(packet.len() <= LIMIT, "{} bytes", packet.len());
            let packet: Value = serde_json::from_str(packet).expect("JSON");
            prop_assert_eq!(&packet["v"], &json!(1));
            let events = packet["events"].as_array().expect("events");
            prop_assert!(!events.is_empty());
            ids.extend(events.iter().map(|event| event["id"].as_i64().expect("an id")));
        }
        prop_assert_eq!(ids, (0..lengths.len() as i64).collect::<Vec<_>>());
        for pair in packets.windows(2) {
            let first_of_the_next: Value = serde_json::from_str(&pair[1]).expect("JSON");
            let first = first_of_the_next["events"][0].to_string();
            prop_assert!(pair[0].len() + 1 + first.len() > LIMIT, "one more would have fitted");
        }
    }

    #[test]
    fn times_come_back_to_the_microsecond(
        us in -63_082_281_600_000_000_i64 - EPOCH_OFFSET_US..252_455_616_000_000_000,
    ) {
        if let Some(text) = rfc3339(us) {
            let parsed = DateTime::parse_from_rfc3339(&text).expect("RFC 3339").with_timezone(&Utc);
            prop_assert_eq!(parsed.timestamp_micros(), us + EPOCH_OFFSET_US, "{}", text);
            prop_assert_eq!(text.len(), "2026-11-30T17:00:00.000000Z".len());
            prop_assert!(text.ends_with('Z') && text.as_bytes()[19] == b'.');
        } else {
            let year_10000_us = 252_455_616_000_000_000_i64;
            prop_assert!(us >= year_10000_us || us + EPOCH_OFFSET_US < -62_167_219_200_000_000, "{us}");
        }
    }

    #[test]
    fn no_time_is_too_far_to_be_asked_for(us: i64) {
        if let Some(text) = rfc3339(us) {
            prop_assert!(DateTime::parse_from_rfc3339(&text).is_ok(), "{}", text);
        }
    }
}

#[test]
fn times_are_written_in_full() {
    assert_eq!(rfc3339(0).as_deref(), Some("2000-01-01T00:00:00.000000Z"));
    assert_eq!(rfc3339(-1).as_deref(), Some("1999-12-31T23:59:59.999999Z"));
    assert_eq!(rfc3339(252_455_615_999_999_999).as_deref(), Some("9999-12-31T23:59:59.999999Z"));
    assert_eq!(rfc3339(252_455_616_000_000_000), None, "RFC 3339 ends with the year 9999");
    assert_eq!([i64::MIN, i64::MAX].map(rfc3339), [None, None]);
}

#[test]
fn lateness_is_in_milliseconds() {
    let record = |deadline_us| -> Value {
        serde_json::from_str(&one(&Event { deadline_us, ..event(1, "orders", "{}", None) })).expect("JSON")
    };
    assert_eq!(record(Some(0))["lateness_ms"], json!(1.5));
    assert_eq!(record(None)["lateness_ms"], Value::Null);
    assert_eq!(record(None)["deadline"], Value::Null);
}

/// jsonb nests as deep as max_stack_depth lets it, and its numbers are numerics.
#[test]
fn deep_or_long_data_is_no_panic() {
    let deep = format!("{}1{}", "[".repeat(3000), "]".repeat(3000));
    let payload = one(&event(1, "orders", r#"{"id": "1"}"#, Some(&deep)));
    assert!(payload.contains(&deep), "{payload}");
    let long = format!("{{\"n\": {}.{}}}", "9".repeat(3000), "1".repeat(900));
    assert!(one(&event(1, "orders", r#"{"id": "1"}"#, Some(&long))).contains(&long));
    let too_long = "9".repeat(100_000);
    let record: Value =
        serde_json::from_str(&one(&event(7, "orders", &too_long, Some(&too_long)))).expect("JSON");
    assert_eq!((&record["id"], &record["key"], &record["data"]), (&json!(7), &Value::Null, &Value::Null));
}
