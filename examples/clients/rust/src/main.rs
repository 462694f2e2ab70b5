//! Writes a refund for each order that pg_expiry has cancelled: refunds "host=... dbname=..."

use std::future::poll_fn;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client, Error, NoTls};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// However quiet it is, we look this often.
const LOOK: Duration = Duration::from_secs(30);

fn main() {
    let conninfo = std::env::args().nth(1).expect("a connection string");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut pause = FIRST_PAUSE;
        loop {
            match session(&conninfo, &mut pause).await {
                Ok(()) => eprintln!("refunds: the connection has ended; again in {pause:?}"),
                Err(error) => {
                    let said = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
                    eprintln!("refunds: {said}; again in {pause:?}");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
}

async fn session(conninfo: &str, pause: &mut Duration) -> Result<(), Error> {
    let (mut client, mut connection) = tokio_postgres::connect(conninfo, NoTls).await?;
    let (news, mut heard) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                // When one is waiting to be noticed, that is enough.
                let _ = news.try_send(());
            }
        }
    });
    // First: what is cancelled from here on wakes us.
    client.batch_execute("SET application_name = 'refunds'; LISTEN order_expired").await?;
    loop {
        while catch_up(&mut client).await? {}
        *pause = FIRST_PAUSE;
        // A notification (one event, many, or a resync) says that there is news; events_after() says what.
        if let Ok(None) = timeout(LOOK, heard.recv()).await {
            return Ok(());
        }
    }
}

/// Deals with the next events, in one transaction with the place in the stream. False: there are none.
async fn catch_up(client: &mut Client) -> Result<bool, Error> {
    let transaction = client.transaction().await?;
    let place = transaction.query_one("SELECT last_id FROM refund_place FOR UPDATE", &[]).await?;
    let last_id: i64 = place.get(0);
    let sql = "SELECT id, kind, key FROM expiry.events_after($1, 100)";
    let events = transaction.query(sql, &[&last_id]).await?;
    for event in &events {
        let (id, kind, key): (i64, &str, Value) = (event.get(0), event.get(1), event.get(2));
        if kind == "cancelled" {
            let sql = "INSERT INTO refund (event_id, order_key) VALUES ($1, $2) ON CONFLICT DO NOTHING";
            transaction.execute(sql, &[&id, &key]).await?;
        }
    }
    if let Some(newest) = events.last() {
        transaction.execute("UPDATE refund_place SET last_id = $1", &[&newest.get::<_, i64>(0)]).await?;
    }
    transaction.commit().await?;
    Ok(!events.is_empty())
}
