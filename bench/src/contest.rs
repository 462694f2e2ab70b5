//! What was measured: rivals, and each one's figures, round by round.

pub struct Contest {
    pub title: &'static str,
    pub unit: &'static str,
    pub rivals: Vec<Rival>,
}

pub struct Rival {
    pub name: &'static str,
    /// One a round; rounds are interleaved, so the same place is the same time for all.
    pub figures: Vec<f64>,
}

impl Contest {
    /// The median of what `a` is to `b` in the same round.
    pub fn ratio(&self, a: usize, b: usize) -> f64 {
        let pairs = self.rivals[a].figures.iter().zip(&self.rivals[b].figures);
        median(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>())
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
