//! How long to wait before the next attempt.

/// The longest wait, whatever the number of attempts.
pub const CAP_US: i64 = 3_600_000_000;

/// The wait after `attempts` failed ones (from 1): doubles with each, up to [`CAP_US`], and ± 12.5 % by
/// `noise`, so that rows that failed together do not come back together.
pub fn wait_us(first_us: i64, attempts: u32, noise: u64) -> i64 {
    let doublings = attempts.saturating_sub(1).min(40);
    let wait = first_us.max(1).saturating_mul(1 << doublings).min(CAP_US);
    let spread = wait / 4;
    if spread == 0 {
        return wait;
    }
    let offset = i64::try_from(noise % spread.unsigned_abs()).expect("less than an i64");
    wait - spread / 2 + offset
}
