//! Stretches of time as people say them.

const SECOND_US: i64 = 1_000_000;

/// The two largest units that matter: `2 d 3 h`, `5 min 3 s`, `1.2 s`, `40 ms`. Negative ones are 0.
pub fn duration(us: i64) -> String {
    let us = us.max(0);
    if us < SECOND_US {
        return format!("{} ms", us / 1000);
    }
    let seconds = us / SECOND_US;
    if seconds < 10 {
        return format!("{}.{} s", seconds, us % SECOND_US / 100_000);
    }
    const UNITS: [(&str, i64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let first = UNITS.iter().position(|(_, size)| seconds >= *size).expect("at least one second");
    let mut left = seconds;
    let mut parts = Vec::new();
    for (unit, size) in UNITS.iter().skip(first).take(2) {
        if left >= *size {
            parts.push(format!("{} {unit}", left / size));
            left %= size;
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_are_spelled() {
        for (us, text) in [
            (-5, "0 ms"),
            (40_999, "40 ms"),
            (1_000_000, "1.0 s"),
            (9_990_000, "9.9 s"),
            (10_999_999, "10 s"),
            (60_000_000, "1 min"),
            (303_000_000, "5 min 3 s"),
            (3_600_000_000, "1 h"),
            (86_400_000_000 * 2 + 3_700_000_000, "2 d 1 h"),
            (i64::MAX, "106751991 d 4 h"),
        ] {
            assert_eq!(duration(us), text);
        }
    }
}
