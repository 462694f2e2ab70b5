//! How long to wait before the next attempt.

/// The longest wait, whatever the number of attempts, unless the first is longer already.
pub const CAP_US: i64 = 3_600_000_000;

/// The wait after `attempts` failed ones (from 1): doubles with each, up to [`CAP_US`], and ± 12.5 % by
/// `noise`, so that rows that failed together do not come back together.
pub fn wait_us(first_us: i64, attempts: u32, noise: u64) -> i64 {
    let first_us = first_us.max(1);
    let doublings = attempts.saturating_sub(1).min(40);
    let wait = first_us.saturating_mul(1 << doublings).min(CAP_US.max(first_us));
    let spread = wait / 4;
    if spread == 0 {
        return wait;
    }
    let offset = i64::try_from(mixed(noise) % spread.unsigned_abs()).expect("less than an i64");
    wait - spread / 2 + offset
}

/// The noise is a time, and times of one batch are neighbours: splitmix64 takes them apart.
fn mixed(noise: u64) -> u64 {
    let z = noise.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
