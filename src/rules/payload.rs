//! The JSON that NOTIFY carries: the event's record, always under PostgreSQL's limit in bytes.

use chrono::Datelike;
use serde::Serialize;
use serde_json::value::RawValue;

/// NOTIFY takes payloads of fewer than 8000 bytes (async.c, NOTIFY_PAYLOAD_MAX_LENGTH).
pub const LIMIT: usize = 7999;

/// What [`packed`] puts around its records.
const OPEN: &str = r#"{"v":1,"events":["#;
const CLOSE: &str = "]}";

/// A record must fit a notification also when packed.
const RECORD_LIMIT: usize = LIMIT - OPEN.len() - CLOSE.len();

/// Microseconds from 1970 to PostgreSQL's 2000-01-01.
const EPOCH_OFFSET_US: i64 = 946_684_800_000_000;

/// One event. Times are microseconds since 2000-01-01 UTC, as in `timestamptz`; the infinities are `None`.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    pub id: i64,
    pub policy: &'a str,
    pub kind: &'a str,
    /// JSON text.
    pub key: &'a str,
    pub deadline_us: Option<i64>,
    pub stated_deadline_us: Option<i64>,
    pub occurred_at_us: i64,
    /// JSON text.
    pub data: Option<&'a str>,
}

#[derive(Serialize)]
struct Record<'a> {
    v: u8,
    id: i64,
    policy: &'a str,
    kind: &'a str,
    /// `None`: too long to push; read it by id.
    key: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "is_false")]
    key_omitted: bool,
    deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stated_deadline: Option<String>,
    occurred_at: Option<String>,
    lateness_ms: Option<f64>,
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "is_false")]
    data_omitted: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it so
fn is_false(value: &bool) -> bool {
    !value
}

/// RFC 3339 in UTC with microseconds; `None` beyond the years 0 to 9999, which is all it can say.
pub fn rfc3339(us: i64) -> Option<String> {
    let unix_us = us.checked_add(EPOCH_OFFSET_US)?;
    let time = chrono::DateTime::from_timestamp_micros(unix_us)?;
    (0..=9999).contains(&time.year()).then(|| time.to_rfc3339_opts(chrono::SecondsFormat::Micros, true))
}

fn raw(json: &str) -> &RawValue {
    serde_json::from_str(json).expect("PostgreSQL writes valid JSON")
}

/// What one notification of the event carries. An over-long `data` is left out first, then the key; the
/// id stands for both.
pub fn one(event: &Event<'_>) -> String {
    let mut record = Record {
        v: 1,
        id: event.id,
        policy: event.policy,
        kind: event.kind,
        key: Some(raw(event.key)),
        key_omitted: false,
        deadline: event.deadline_us.and_then(rfc3339),
        stated_deadline: event.stated_deadline_us.and_then(rfc3339),
        occurred_at: rfc3339(event.occurred_at_us),
        #[allow(clippy::cast_precision_loss)] // exact below 285 years
        lateness_ms: event
            .deadline_us
            .map(|deadline| event.occurred_at_us.saturating_sub(deadline) as f64 / 1000.0),
        data: event.data.map(raw),
        data_omitted: false,
    };
    let write = |record: &Record<'_>| serde_json::to_string(record).expect("a record is always JSON");
    let mut text = write(&record);
    if text.len() > RECORD_LIMIT && record.data.is_some() {
        record.data = None;
        record.data_omitted = true;
        text = write(&record);
    }
    if text.len() > RECORD_LIMIT {
        record.key = None;
        record.key_omitted = true;
        text = write(&record);
    }
    text
}

/// Tells listeners that notifications were withheld after the event `after`, and that they should read from
/// there on.
pub fn resync(policy: &str, after: i64) -> String {
    serde_json::json!({ "v": 1, "kind": "resync", "policy": policy, "after": after }).to_string()
}

/// Packs records into as few notifications as fit: `{"v":1,"events":[...]}`.
pub fn packed(records: &[String]) -> Vec<String> {
    let mut packets = Vec::new();
    let mut packet = String::from(OPEN);
    for record in records {
        if packet.len() > OPEN.len() && packet.len() + 1 + record.len() + CLOSE.len() > LIMIT {
            packet += CLOSE;
            packets.push(std::mem::replace(&mut packet, String::from(OPEN)));
        }
        if packet.len() > OPEN.len() {
            packet.push(',');
        }
        packet += record;
    }
    if packet.len() > OPEN.len() {
        packet += CLOSE;
        packets.push(packet);
    }
    packets
}
