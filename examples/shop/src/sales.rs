//! The customers: what they order, and which of them pay.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::serde_json::Value;

use crate::screen::say;

const ORDERS: u32 = 24;
const INTERVAL: Duration = Duration::from_millis(200);
/// This one is paid in the very moment of its deadline: either outcome is right, both is not.
const LAST_MOMENT: u32 = 11;

enum Act {
    Order(u32),
    Pay(i64),
}

/// Places all orders and makes all payments, each at its time.
pub fn run(client: &mut Client) {
    let open = SystemTime::now();
    let orders = (0..ORDERS).map(|n| ((open + INTERVAL * n, n), Act::Order(n)));
    let mut agenda: BTreeMap<(SystemTime, u32), Act> = orders.collect();
    while let Some(((time, n), act)) = agenda.pop_first() {
        // Customers keep to the clock: there is no condition to wait for.
        sleep(time.duration_since(SystemTime::now()).unwrap_or_default());
        match act {
            Act::Order(n) => {
                let (id, pay_by) = place_order(client, n);
                if n == LAST_MOMENT {
                    agenda.insert((pay_by, n), Act::Pay(id));
                } else if n % 3 == 0 {
                    agenda.insert((SystemTime::now() + Duration::from_secs(1), n), Act::Pay(id));
                }
            }
            Act::Pay(id) => pay(client, id, n == LAST_MOMENT),
        }
    }
}

/// Timeouts of 2 to 5 seconds, one to three different items, and sometimes points.
fn place_order(client: &mut Client, n: u32) -> (i64, SystemTime) {
    let customer = (n % 3 + 1).cast_signed();
    let items: &[(&str, u32)] = match n % 4 {
        0 => &[("tea", 2)],
        1 => &[("tea", 1), ("cup", 4)],
        2 => &[("pot", 1), ("tea", 3), ("cup", 2)],
        _ => &[("cup", 1)],
    };
    let items_json: Value = items.iter().map(|(sku, qty)| (sku.to_string(), Value::from(*qty))).collect();
    let points = if n.is_multiple_of(2) { 25 } else { 0 };
    let seconds = 2.0 + f64::from(n * 7 % 13) * 0.25;
    let sql = "SELECT order_id, pay_by FROM place_order($1, $2, $3, make_interval(secs => $4))";
    let row = client.query_one(sql, &[&customer, &items_json, &points, &seconds]).expect("place_order");
    let (id, pay_by) = (row.get(0), row.get(1));
    let items: Vec<String> = items.iter().map(|(sku, qty)| format!("{qty} {sku}")).collect();
    let items = items.join(", ");
    say(format_args!("order {id:>2}  placed: {items}, {points} points; to be paid within {seconds:.2} s"));
    (id, pay_by)
}

fn pay(client: &mut Client, id: i64, at_the_last_moment: bool) {
    let when = if at_the_last_moment { " in the moment of its deadline" } else { "" };
    match client.execute("SELECT pay_order($1)", &[&id]) {
        Ok(_) => say(format_args!("order {id:>2}  paid{when}")),
        Err(error) => {
            let reason =
                error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().into());
            say(format_args!("order {id:>2}  payment refused{when}: {reason}"));
        }
    }
}
