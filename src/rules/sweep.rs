//! When to look below the floor. Rows arrive there (a transaction that commits late, an old deadline, a
//! status set back), so every look ahead sweeps; but dead index entries may make a sweep dear, so sweeps
//! take at most 2 % of the time.

/// The inverse of the share of time that sweeps may take.
const SHARE: i64 = 50;

/// Whether the next claim should start at -infinity.
pub fn is_due(now_us: i64, last_sweep_us: i64, last_duration_us: i64, lookahead_us: i64) -> bool {
    let pause = last_duration_us.max(0).saturating_mul(SHARE).max(lookahead_us);
    now_us.saturating_sub(last_sweep_us) >= pause || now_us < last_sweep_us
}
