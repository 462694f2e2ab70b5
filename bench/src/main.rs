//! `make bench`: pg_expiry beside what people use instead, on the same shop, in one run.

mod backlog;
mod contest;
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
    let cluster = shop::cluster();
    let mut shop = shop::Shop::open(&cluster);
    for contest in [backlog::run(&mut shop, &scale), backlog::run_under_old_snapshot(&mut shop, &scale)] {
        print(&contest);
    }
}

fn print(contest: &Contest) {
    println!("{} ({})", contest.title, contest.unit);
    for rival in &contest.rivals {
        println!("  {:50} {:>12.0}", rival.name, median(&rival.figures));
    }
    println!("  ratio of the first to the second: {:.2}", contest.ratio(0, 1));
    if contest.rivals.len() > 3 {
        println!("  ratio of the third to the fourth: {:.2}", contest.ratio(2, 3));
    }
}
