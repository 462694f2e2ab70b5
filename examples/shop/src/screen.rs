//! The listening client: shows each event as it arrives.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use chrono::{DateTime, Utc};
use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Heard, Listener, wait_until};

const A_MOMENT: Duration = Duration::from_millis(50);

/// One line with the time before it.
pub fn say(line: impl Display) {
    println!("{}  {line}", Utc::now().format("%H:%M:%S%.3f"));
}

pub struct Screen {
    heard: Receiver<Heard>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Screen {
    /// LISTENs on a connection of its own, as any client would, until the day is over.
    pub fn listen(cluster: &Cluster, database: &str) -> Screen {
        let listener = Listener::new(cluster.endpoint(), database, "order_expired");
        let is_over = Arc::new(AtomicBool::new(false));
        let (sender, heard) = channel();
        let flag = Arc::clone(&is_over);
        let thread = spawn(move || show(listener, &sender, &flag));
        Screen { heard, is_over, thread }
    }

    /// All events, once no order is pending any more and each has been heard of.
    pub fn wait_for_all(self, client: &mut Client) -> Vec<Heard> {
        let count = |client: &mut Client, sql| -> i64 { client.query_one(sql, &[]).expect("a count").get(0) };
        wait_until("all orders to be paid or cancelled", Duration::from_secs(10), || {
            match count(client, "SELECT count(*) FROM orders WHERE status = 'pending'") {
                0 => Ok(()),
                pending => Err(format!("{pending} are pending")),
            }
        });
        let recorded = count(client, "SELECT count(*) FROM expiry.event");
        let mut heard = Vec::new();
        for _ in 0..recorded {
            heard.extend(self.heard.recv_timeout(Duration::from_secs(5)));
        }
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the listener");
        heard.extend(self.heard.try_iter());
        heard
    }
}

fn show(mut listener: Listener, sender: &Sender<Heard>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let Some(heard) = listener.try_next(A_MOMENT) else { continue };
        let (event, id) = (&heard.json, heard.json["key"]["id"].as_str().unwrap_or("?"));
        let lateness = event["lateness_ms"].as_f64().unwrap_or(f64::NAN);
        let kind = event["kind"].as_str().unwrap_or("?");
        let arrival = arrival_ms(&heard).unwrap_or(f64::NAN);
        say(format_args!(
            "order {id:>2}  {kind} {lateness:.1} ms after its deadline; event {} arrived after {arrival:.1} ms",
            event["id"]
        ));
        let _ = sender.send(heard);
    }
}

/// From the deadline to our ear.
fn arrival_ms(heard: &Heard) -> Option<f64> {
    let deadline: DateTime<Utc> = heard.json["deadline"].as_str()?.parse().ok()?;
    Some((heard.at - deadline).num_microseconds()? as f64 / 1000.0)
}
