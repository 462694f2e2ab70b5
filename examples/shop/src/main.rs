//! `make demo`: orders come in, some are paid, the others are cancelled by pg_expiry at their
//! deadline while a client listens; then the books are checked.
//!
//! `KEEP=1` in the environment leaves the server on.

mod books;
mod sales;
mod screen;
mod server;

use std::process::ExitCode;

const SCHEMA: &str = include_str!("../schema.sql");

/// All that the shop has to say to pg_expiry.
const POLICY: &str = "
    CREATE EXTENSION pg_expiry;
    SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                                cancel_function => 'cancel_order(bigint)');";

fn main() -> ExitCode {
    let keep = std::env::var("KEEP").is_ok_and(|keep| !keep.is_empty() && keep != "0");
    let cluster = server::start(keep);
    cluster.connect("postgres").batch_execute("CREATE DATABASE shop").expect("CREATE DATABASE");
    let mut client = cluster.connect("shop");
    client.batch_execute(SCHEMA).expect("schema.sql");
    client.batch_execute(POLICY).expect("the policy");
    println!("A shop on a server of its own. Its only words to pg_expiry:\n{POLICY}\n");
    server::wait_for_worker(&mut client);

    let screen = screen::Screen::listen(&cluster, "shop");
    let stock_before = books::stock(&mut client);
    let points_before = books::points(&mut client);
    sales::run(&mut client);
    let heard = screen.wait_for_all(&mut client);

    let balanced = books::check(&mut client, &stock_before, points_before, &heard);
    server::say_goodbye(&cluster, keep);
    if balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
