//! Plots as SVG: lines over a linear or a logarithmic axis, and a legend.

use std::fmt::Write;

use crate::contest::{Axis, Line, Plot, Shape, in_words, percentile};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;
/// Of colours that can be told apart by most.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4f9e", "#8a6d3b", "#000000"];

pub fn draw(plot: &Plot) -> String {
    let lines: Vec<(&Line, Vec<(f64, f64)>)> = plot.lines.iter().map(|line| (line, points(line))).collect();
    let all = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let x = Range::of(&plot.x, all().map(|(x, _)| x));
    let y = Range::of(&plot.y, all().map(|(_, y)| y));
    let at = |(px, py): (f64, f64)| {
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        (LEFT + x.share(px) * width, HEIGHT - BOTTOM - y.share(py) * height)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    text(&mut svg, (middle, 22.0), "middle", 15, &plot.title);
    text(&mut svg, (middle, HEIGHT - 14.0), "middle", 12, &plot.x.label);
    let turned = (TOP + HEIGHT - BOTTOM) / 2.0;
    let label = escaped(&plot.y.label);
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{turned}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {turned})\">{label}</text>"
    );
    for tick in x.ticks() {
        let (px, _) = at((tick, y.from));
        rule(&mut svg, (px, TOP), (px, HEIGHT - BOTTOM));
        text(&mut svg, (px, HEIGHT - BOTTOM + 18.0), "middle", 12, &in_words(tick));
    }
    for tick in y.ticks() {
        let (_, py) = at((x.from, tick));
        rule(&mut svg, (LEFT, py), (WIDTH - RIGHT, py));
        text(&mut svg, (LEFT - 8.0, py + 4.0), "end", 12, &in_words(tick));
    }
    for (place, (line, points)) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<String> =
            points.iter().map(|point| at(*point)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>",
            path.join(" ")
        );
        let height = TOP + 14.0 + 22.0 * place as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"18\" height=\"4\" fill=\"{colour}\"/>",
            WIDTH - RIGHT + 14.0,
            height - 6.0
        );
        text(&mut svg, (WIDTH - RIGHT + 38.0, height), "start", 12, &line.name);
    }
    svg + "</svg>\n"
}

fn points(line: &Line) -> Vec<(f64, f64)> {
    const STEPS: usize = 400;
    match &line.shape {
        Shape::Points(points) => points.clone(),
        Shape::Distribution(samples) => {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            let percents = (0..=STEPS).map(|step| step as f64 * 100.0 / STEPS as f64);
            percents.map(|percent| (percentile(&sorted, percent), percent)).collect()
        }
    }
}

/// What an axis shows.
struct Range {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Range {
    fn of(axis: &Axis, figures: impl Iterator<Item = f64>) -> Range {
        const LEAST: f64 = 0.01; // of a logarithmic axis
        let figures: Vec<f64> = figures.collect();
        let to = figures.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        if axis.is_log {
            let from = figures.iter().copied().fold(f64::INFINITY, f64::min).max(LEAST);
            let to = to.max(from * 1.001);
            let (from, to) = (10f64.powf(from.log10().floor()), 10f64.powf(to.log10().ceil()));
            return Range { from, to, is_log: true };
        }
        let step = step(to);
        Range { from: 0.0, to: (to / step).ceil() * step, is_log: false }
    }

    /// From 0 at the beginning to 1 at the end.
    fn share(&self, figure: f64) -> f64 {
        let share = if self.is_log {
            (figure.max(self.from) / self.from).log10() / (self.to / self.from).log10()
        } else {
            (figure - self.from) / (self.to - self.from)
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.to / self.from).log10().round() as i32;
            return (0..=decades).map(|decade| self.from * 10f64.powi(decade)).collect();
        }
        let step = step(self.to);
        (0..=(self.to / step).round() as u32).map(|tick| f64::from(tick) * step).collect()
    }
}

/// A round figure, of which a handful make up the whole.
fn step(whole: f64) -> f64 {
    let rough = whole / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    decade * steps.into_iter().find(|step| step * decade >= rough).unwrap_or(10.0)
}

fn rule(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ =
        writeln!(svg, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\" stroke-width=\"1\"/>");
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(words)
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}
