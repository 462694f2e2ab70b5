//! `make bench`: pg_expiry beside what people use instead, on the same shop, in one run.
//!
//! SCALE=quick or tiny measures less; ONLY=backlog,checkout,... only some of it.

mod backlog;
mod checkout;
mod contest;
mod punctual;
mod scale;
mod shop;

use contest::{Contest, median};
use scale::Scale;

fn main() {
    let scale = match std::env::var("SCALE").as_deref() {
        Ok("tiny") => Scale::TINY,
        Ok("quick") => Scale::QUICK,
        _ => Scale::FULL,
    };
    let only = std::env::var("ONLY").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split(',').any(|part| part == name);
    let cluster = shop::cluster();
    let mut shop = shop::Shop::open(&cluster);
    let mut measured = |name: &str, measure: &mut dyn FnMut(&mut shop::Shop) -> Vec<Contest>| {
        if wanted(name) {
            measure(&mut shop).iter().for_each(print);
        }
    };
    measured("punctual", &mut |shop| punctual::run(shop, &scale));
    measured("instant", &mut |shop| vec![punctual::run_one_instant(shop, &scale)]);
    measured("backlog", &mut |shop| vec![backlog::run(shop, &scale)]);
    measured("snapshot", &mut |shop| vec![backlog::run_under_old_snapshot(shop, &scale)]);
    measured("checkout", &mut |shop| vec![checkout::run(&cluster, shop, &scale)]);
    measured("drain", &mut |shop| vec![checkout::run_beside_a_drain(shop, &scale)]);
}

/// Medians, and each rival as a multiple of the first, round by round.
fn print(contest: &Contest) {
    println!("{} ({})", contest.title, contest.unit);
    for (place, rival) in contest.rivals.iter().enumerate() {
        let ratio = contest.ratio(place, 0);
        println!("  {:50} {:>12.2}   x {ratio:.2}", rival.name, median(&rival.figures));
    }
}
