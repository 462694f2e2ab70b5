//! What was measured: parts of contests between rivals, as they are printed, kept in a file, and read for the report.

use serde::{Deserialize, Serialize};

/// What one part of the benchmark has found.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Part {
    pub title: String,
    /// What was measured, and how.
    pub how: String,
    /// With the same rivals in the same order.
    pub contests: Vec<Contest>,
    pub targets: Vec<Target>,
    pub plots: Vec<Plot>,
    /// What a reader has to know besides.
    pub notes: Vec<String>,
    pub measured_at: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Contest {
    pub title: String,
    pub unit: String,
    pub rivals: Vec<Rival>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Rival {
    pub name: String,
    /// One a round; rounds are interleaved, so the same place is the same time for all.
    pub figures: Vec<f64>,
}

/// What was aimed at, and what came out.
#[derive(Debug, Serialize, Deserialize)]
pub struct Target {
    pub aim: String,
    pub figure: f64,
    pub is_met: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Plot {
    /// Of the file, without its ending.
    pub name: String,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Axis {
    pub label: String,
    pub is_log: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    pub name: String,
    pub shape: Shape,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Shape {
    Points(Vec<(f64, f64)>),
    /// Samples, of which the share up to each is drawn, in percent.
    Distribution(Vec<f64>),
}

impl Contest {
    /// Of rivals without figures yet.
    pub fn new<S: Into<String>>(title: &str, unit: &str, names: impl IntoIterator<Item = S>) -> Contest {
        let rivals = names.into_iter().map(|name| Rival { name: name.into(), figures: Vec::new() });
        Contest { title: title.into(), unit: unit.into(), rivals: rivals.collect() }
    }

    /// The next round's figure of the rival in that place.
    pub fn push(&mut self, place: usize, figure: f64) {
        let rival = &mut self.rivals[place];
        println!("  {} {}: {} {}", rival.name, self.title, in_words(figure), self.unit);
        rival.figures.push(figure);
    }

    pub fn median(&self, place: usize) -> f64 {
        median(&self.rivals[place].figures)
    }

    /// The median of what `a` is to `b` in the same round.
    pub fn ratio(&self, a: usize, b: usize) -> f64 {
        let pairs = self.rivals[a].figures.iter().zip(&self.rivals[b].figures);
        median(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>())
    }
}

impl Target {
    pub fn at_most(limit: f64, figure: f64, aim: &str) -> Target {
        Target { aim: format!("{aim}: at most {}", in_words(limit)), figure, is_met: figure <= limit }
    }

    pub fn at_least(limit: f64, figure: f64, aim: &str) -> Target {
        Target { aim: format!("{aim}: at least {}", in_words(limit)), figure, is_met: figure >= limit }
    }

    pub fn verdict(&self) -> &'static str {
        if self.is_met { "met" } else { "not met" }
    }
}

impl Axis {
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.into(), is_log: false }
    }

    pub fn log(label: &str) -> Axis {
        Axis { label: label.into(), is_log: true }
    }
}

/// Three digits that say something, thousands apart.
pub fn in_words(figure: f64) -> String {
    let size = figure.abs();
    match size {
        _ if size >= 1000.0 => {
            let digits = format!("{:.0}", size);
            let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
            let sign = if figure < 0.0 { "-" } else { "" };
            format!("{sign}{}", groups.collect::<Vec<_>>().join(","))
        }
        _ if size >= 100.0 || figure.fract() == 0.0 => format!("{figure:.0}"),
        _ if size >= 10.0 => format!("{figure:.1}"),
        _ if size >= 0.1 => format!("{figure:.2}"),
        _ => format!("{figure:.4}"),
    }
}

pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// Of sorted figures: the least that so many percent do not exceed.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1]
}
