//! Lateness by bucket: bucket n ends at 2^(n-4) ms, so 1/16 ms to 50 days in 37 of them.

pub const BUCKETS: usize = 37;

/// The bucket of a lateness; what is beyond the last goes into the last.
pub fn bucket(lateness_us: i64) -> usize {
    let mut end_us = 62.5_f64;
    #[allow(clippy::cast_precision_loss)] // a bucket is coarse anyway
    let lateness_us = lateness_us as f64;
    (0..BUCKETS - 1)
        .find(|_| {
            let fits = lateness_us <= end_us;
            end_us *= 2.0;
            fits
        })
        .unwrap_or(BUCKETS - 1)
}
