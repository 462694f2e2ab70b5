//! What NOTIFY carries: whatever a row, a name or an error holds, it is JSON, fits, and says what was put into it.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use pg_expiry_fuzz::rules::alert::Alert;
use pg_expiry_fuzz::rules::payload::{Event, LIMIT, one, packed, resync};
use serde_json::{Value, json};

#[derive(Arbitrary, Debug)]
struct Input {
    id: i64,
    policy: String,
    key: Vec<(String, String)>,
    /// Makes texts long without a long input.
    times: u16,
    data: Option<String>,
    deadline_us: Option<i64>,
    stated_deadline_us: Option<i64>,
    occurred_at_us: i64,
    attempts: u32,
    others: Vec<u16>,
}

/// What PostgreSQL can hold: no NUL, and in a name 63 bytes.
fn text(text: &str) -> String {
    text.replace('\0', "")
}

fn name(text: &str) -> String {
    let text = self::text(text);
    let end = (0..=63.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

fn parsed(payload: &str) -> Value {
    assert!(payload.len() <= LIMIT, "{} bytes", payload.len());
    serde_json::from_str(payload).expect("JSON")
}

fuzz_target!(|input: Input| {
    let policy = name(&input.policy);
    let long = |value: &String| text(value).repeat(usize::from(input.times % 2048).max(1)).into();
    let key: serde_json::Map<String, Value> =
        input.key.iter().map(|(column, value)| (name(column), long(value))).collect();
    let key = Value::Object(key);
    let data = input.data.as_ref().map(|data| json!({ "note": text(data), "again": [long(data)] }));
    let (key_text, data_text) = (key.to_string(), data.as_ref().map(Value::to_string));
    let event = Event {
        id: input.id,
        policy: &policy,
        kind: "cancelled",
        key: &key_text,
        deadline_us: input.deadline_us,
        stated_deadline_us: input.stated_deadline_us,
        occurred_at_us: input.occurred_at_us,
        data: data_text.as_deref(),
    };
    let record = one(&event);
    let value = parsed(&record);
    assert_eq!((&value["id"], &value["policy"]), (&json!(input.id), &json!(policy)));
    let is_omitted = |what: &str| value.get(format!("{what}_omitted")) == Some(&json!(true));
    assert_eq!(&value["key"], if is_omitted("key") { &Value::Null } else { &key });
    assert_eq!(
        &value["data"],
        if is_omitted("data") { &Value::Null } else { data.as_ref().unwrap_or(&Value::Null) }
    );

    // Packed among others of other lengths, none is lost and none changed.
    let others = input.others.iter().take(64).map(|length| {
        let key = json!({ "id": "1".repeat(usize::from(length % 9000)) }).to_string();
        one(&Event { key: &key, data: None, ..event.clone() })
    });
    let records: Vec<String> = others.chain([record]).collect();
    let packets: Vec<Value> = packed(&records).iter().map(|packet| parsed(packet)).collect();
    let unpacked: Vec<Value> =
        packets.iter().flat_map(|packet| packet["events"].as_array().expect("events").clone()).collect();
    let put: Vec<Value> = records.iter().map(|record| parsed(record)).collect();
    assert_eq!(unpacked, put);

    assert_eq!(parsed(&resync(&policy, input.id))["policy"], json!(policy));
    let reason = text(input.data.as_deref().unwrap_or_default()).repeat(usize::from(input.times));
    let database = name(&reason);
    let alert = Alert::new("quarantined", &database, &policy, input.occurred_at_us)
        .because(Some(&reason))
        .of_row(&key_text, input.attempts)
        .lagging(input.occurred_at_us, input.id);
    let alert = parsed(&alert.payload());
    assert!(reason.starts_with(alert["reason"].as_str().expect("a reason")));
    assert!(alert.get("key").is_none_or(|said| *said == key));
});
