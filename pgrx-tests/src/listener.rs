//! A client that LISTENs, on a connection that does nothing else.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Notification};
use serde_json::Value;

use crate::Endpoint;

/// A notification, when it came, and its payload as JSON.
#[derive(Debug, Clone)]
pub struct Heard {
    /// When it was taken from the connection.
    pub at: DateTime<Utc>,
    pub channel: String,
    /// The pid of the process that notified.
    pub sender: i32,
    pub payload: String,
    pub json: Value,
}

pub struct Listener {
    client: Client,
}

impl Listener {
    pub fn new(endpoint: &Endpoint, database: &str, channel: &str) -> Listener {
        let mut client = endpoint.connect(database);
        let quoted = channel.replace('"', "\"\"");
        client.batch_execute(&format!("LISTEN \"{quoted}\"")).expect("LISTEN");
        Listener { client }
    }

    /// The next notification; panics when none comes within `timeout`.
    #[track_caller]
    pub fn next(&mut self, timeout: Duration) -> Heard {
        match self.try_next(timeout) {
            Some(heard) => heard,
            None => panic!("waited {timeout:?} for a notification"),
        }
    }

    /// The next notification, if one comes within `timeout`.
    pub fn try_next(&mut self, timeout: Duration) -> Option<Heard> {
        let mut notifications = self.client.notifications();
        let next = notifications.timeout_iter(timeout).next();
        next.expect("the listener's connection").map(Heard::new)
    }

    /// Exactly `count` notifications; panics when they do not all come within `timeout`.
    #[track_caller]
    pub fn take(&mut self, count: usize, timeout: Duration) -> Vec<Heard> {
        let start = Instant::now();
        let mut heard = Vec::with_capacity(count);
        while heard.len() < count {
            match self.try_next(timeout.saturating_sub(start.elapsed())) {
                Some(next) => heard.push(next),
                None => panic!("waited {timeout:?} for {count} notifications, got {}", heard.len()),
            }
        }
        heard
    }

    /// Everything that was sent to us by transactions that have committed before this call.
    pub fn drain(&mut self) -> Vec<Heard> {
        // A round trip: the server sends what is queued before it is ready for the next query.
        self.client.batch_execute("SELECT 1").expect("the listener's connection");
        let mut notifications = self.client.notifications();
        let queued = notifications.iter().map(|heard| Ok(Heard::new(heard)));
        queued.collect().expect("the listener's connection")
    }

    /// What had arrived when the server died.
    pub fn last_words(mut self) -> Vec<Heard> {
        let mut notifications = self.client.notifications();
        // Reads all there is, up to the error of the broken connection.
        let first = notifications.timeout_iter(Duration::from_secs(10)).next();
        let mut heard: Vec<Heard> = first.ok().flatten().map(Heard::new).into_iter().collect();
        let mut arrived = notifications.iter();
        while let Ok(Some(next)) = arrived.next() {
            heard.push(Heard::new(next));
        }
        heard
    }
}

impl Heard {
    fn new(notification: Notification) -> Heard {
        let payload = notification.payload().to_owned();
        Heard {
            at: Utc::now(),
            channel: notification.channel().to_owned(),
            sender: notification.process_id(),
            json: serde_json::from_str(&payload).unwrap_or(Value::Null),
            payload,
        }
    }
}
