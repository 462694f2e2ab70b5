//! The day's accounts: nothing may be lost, nothing may be there twice.

use std::collections::BTreeMap;

use pg_expiry_tests::Heard;
use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::postgres::types::FromSqlOwned;

fn value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
}

pub fn stock(client: &mut Client) -> BTreeMap<String, i64> {
    let rows = client.query("SELECT sku, qty::bigint FROM stock", &[]).expect("stock");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// What the customers have, and what they will get back.
pub fn points(client: &mut Client) -> i64 {
    value(
        client,
        "SELECT (SELECT sum(points) FROM customers)
              + (SELECT coalesce(sum((body->>'points')::int), 0) FROM outbox WHERE task = 'refund points')",
    )
}

/// Prints the summary; true when everything adds up.
pub fn check(
    client: &mut Client,
    stock_before: &BTreeMap<String, i64>,
    points_before: i64,
    heard: &[Heard],
) -> bool {
    let placed: i64 = value(client, "SELECT count(*) FROM orders");
    let paid: i64 =
        value(client, "SELECT count(*) FROM orders JOIN payments ON order_id = id WHERE status = 'paid'");
    let cancelled: i64 = value(client, "SELECT count(*) FROM orders WHERE status = 'cancelled'");
    let payments: i64 = value(client, "SELECT count(*) FROM payments");

    let mut stock_expected = stock_before.clone();
    let sold = "SELECT sku, sum(qty)::bigint FROM order_items JOIN payments USING (order_id) GROUP BY sku";
    for row in client.query(sold, &[]).expect("what was sold") {
        *stock_expected.get_mut(row.get::<_, &str>(0)).expect("a known item") -= row.get::<_, i64>(1);
    }
    let stock = stock(client);
    let spent: i64 =
        value(client, "SELECT coalesce(sum(points), 0)::bigint FROM orders WHERE status = 'paid'");
    let points = points(client);

    // Of each cancelled order: one event in the table, and the same one heard.
    let recorded: i64 = value(client, "SELECT count(*) FROM expiry.event");
    let matched: i64 = value(
        client,
        "SELECT count(DISTINCT o.id) FROM orders o JOIN expiry.event e ON (e.key->>'id')::bigint = o.id
         WHERE o.status = 'cancelled' AND e.kind = 'cancelled'",
    );
    let heard_ids: std::collections::BTreeSet<_> =
        heard.iter().map(|heard| heard.json["id"].as_i64()).collect();
    let mut lateness: Vec<f64> =
        heard.iter().filter_map(|heard| heard.json["lateness_ms"].as_f64()).collect();
    lateness.sort_by(f64::total_cmp);
    let earliest = lateness.first().copied().unwrap_or(-1.0);

    let checks = [
        (
            cancelled + paid == placed && paid == payments,
            format!("{cancelled} cancelled + {paid} paid = {placed} placed"),
        ),
        (stock == stock_expected, format!("stock is {stock:?}: as before, less what was paid for")),
        (
            points + spent == points_before,
            format!("points are {points} with refunds: as before, less {spent} spent"),
        ),
        (
            recorded == cancelled && matched == cancelled,
            format!("{recorded} events recorded, one for each cancelled order"),
        ),
        (
            heard.len() as i64 == recorded && heard_ids.len() as i64 == recorded,
            format!("{} events heard, each once", heard.len()),
        ),
        (lateness.len() == heard.len() && earliest >= 0.0, lateness_line(&lateness)),
    ];
    println!("\nThe books:");
    for (is_right, line) in &checks {
        println!("  {}  {line}", if *is_right { "ok   " } else { "WRONG" });
    }
    checks.iter().all(|(is_right, _)| *is_right)
}

fn lateness_line(sorted: &[f64]) -> String {
    match sorted {
        [] => "nothing was cancelled".into(),
        [.., greatest] => {
            let median = sorted[sorted.len() / 2];
            format!("none cancelled early; median lateness {median:.1} ms, greatest {greatest:.1} ms")
        }
    }
}
