//! The report: benchmarks.md, generated whole, and its plots.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::contest::{Contest, Part, in_words};
use crate::machine::Machine;
use crate::results::Results;
use crate::{PARTS, svg};

const INTRODUCTION: &str = "# Benchmarks

pg_expiry beside plain SQL and beside what people use instead: the same server, the same shop, the same checks. After each
round every order is cancelled exactly once, the stock of every article is exact, and no order was cancelled
early; otherwise there would be no report. This file is written by `make bench`, never by hand.
";

pub fn write(results: &Results, out: &Path) {
    let machine = results.machine();
    let parts: Vec<Part> = PARTS.iter().flat_map(|(name, _)| results.parts(name)).collect();
    let plots = out.join("benchmarks");
    fs::create_dir_all(&plots).expect("the folder of the plots");
    for plot in parts.iter().flat_map(|part| &part.plots) {
        fs::write(plots.join(&plot.name).with_extension("svg"), svg::draw(plot)).expect("a plot");
    }
    let file = out.join("benchmarks.md");
    fs::write(&file, text(&machine, &parts)).expect("the report");
    println!("the report: {}", file.display());
}

fn text(machine: &Machine, parts: &[Part]) -> String {
    let mut md = INTRODUCTION.to_owned();
    md += "\n## Targets\n\n| target | measured | |\n|---|---|---|\n";
    for target in parts.iter().flat_map(|part| &part.targets) {
        let _ = writeln!(md, "| {} | {} | {} |", target.aim, in_words(target.figure), target.verdict());
    }
    md += &weaknesses(parts);
    for part in parts {
        section(&mut md, part);
    }
    how_and_where(&mut md, machine);
    md
}

/// Where we are not good.
fn weaknesses(parts: &[Part]) -> String {
    let missed: Vec<String> = parts
        .iter()
        .flat_map(|part| part.targets.iter().map(move |target| (part, target)))
        .filter(|(_, target)| !target.is_met)
        .map(|(part, target)| {
            format!("- {}: {}; it is {}.\n", part.title, target.aim, in_words(target.figure))
        })
        .collect();
    let mut md = String::from("\n## Where it is not good\n\n");
    if missed.is_empty() {
        md += "Every target was met. ";
    } else {
        md += &missed.concat();
        md += "\n";
    }
    md + "One statement for a whole backlog is faster than pg_expiry, which commits batches and writes an event and a \
          notification for each order.\n"
}

fn section(md: &mut String, part: &Part) {
    let _ = write!(md, "\n## {}\n\n", part.title);
    if !part.how.is_empty() {
        let _ = write!(md, "{}\n\n", folded(&part.how));
    }
    if let [contest] = part.contests.as_slice() {
        single(md, contest);
    } else if !part.contests.is_empty() {
        several(md, &part.contests);
    }
    for plot in &part.plots {
        let _ = write!(md, "\n![{}](benchmarks/{}.svg)\n", plot.title, plot.name);
    }
    for target in &part.targets {
        let _ = write!(
            md,
            "\nTarget: {}. Measured {}: {}.\n",
            target.aim,
            in_words(target.figure),
            target.verdict()
        );
    }
    for note in &part.notes {
        let _ = write!(md, "\n{}\n", folded(note));
    }
}

fn single(md: &mut String, contest: &Contest) {
    let _ = writeln!(
        md,
        "| | {}, {} | least | most | × the first |\n|---|--:|--:|--:|--:|",
        contest.title, contest.unit
    );
    for (place, rival) in contest.rivals.iter().enumerate() {
        let least = rival.figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rival.figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let figures = [contest.median(place), least, most, contest.ratio(place, 0)].map(in_words);
        let _ = writeln!(md, "| {} | {} |", rival.name, figures.join(" | "));
    }
}

fn several(md: &mut String, contests: &[Contest]) {
    let heads: Vec<String> =
        contests.iter().map(|contest| format!("{}, {}", contest.title, contest.unit)).collect();
    let _ = writeln!(md, "| | {} |\n|---|{}", heads.join(" | "), "--:|".repeat(contests.len()));
    for (place, rival) in contests[0].rivals.iter().enumerate() {
        let medians: Vec<String> = contests.iter().map(|contest| in_words(contest.median(place))).collect();
        let _ = writeln!(md, "| {} | {} |", rival.name, medians.join(" | "));
    }
}

fn how_and_where(md: &mut String, machine: &Machine) {
    *md += "\n## The machine, and the versions\n\n| | |\n|---|---|\n";
    for (name, value) in machine.facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(md, "| {name} | {value} |");
    }
    for (name, version) in &machine.peers {
        let _ = writeln!(md, "| {name} | {version} |");
    }
    for missing in &machine.missing {
        let _ = write!(md, "\n{}\n", folded(missing));
    }
    let scale = if machine.scale == "full" {
        String::new()
    } else {
        format!(" SCALE={} PEERS=all OUT=docs", machine.scale)
    };
    let how = format!(
        "Figures are medians of {} rounds. In a round everybody has a turn, one after the other; a ratio is the median \
         of the ratios within each round. The server flushes to disk at each commit and has 1 GB of shared_buffers; its \
         autovacuum is off, and tables are vacuumed before each turn instead; its files of WAL are there to be used \
         again, as on one that has been running for a while. Those who look at intervals do so once a \
         second: their lateness is about half of that, whoever they are, and a shorter interval costs CPU time in \
         proportion. pg_cron can look once a minute only: it is late by up to a minute, and where in its minute the \
         deadlines of these rounds fell is chance. The workers' programs are in bench/peers, what is measured in \
         bench/src.",
        machine.rounds
    );
    let _ = write!(md, "\n## How to repeat it\n\n    make bench{scale}\n\n{}\n", folded(&how));
}

/// In lines of no more than 118 characters.
fn folded(text: &str) -> String {
    const WIDTH: usize = 118;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("a line");
        if line.is_empty() {
            *line = word.into();
        } else if line.chars().count() + 1 + word.chars().count() <= WIDTH {
            *line += " ";
            *line += word;
        } else {
            lines.push(word.into());
        }
    }
    lines.join("\n")
}
