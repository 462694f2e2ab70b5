//! Versions of the extension: numbers with dots between them.

/// Whether the version `one` comes before `other`; what is no number counts for nothing.
pub fn is_older(one: &str, other: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    numbers(one) < numbers(other)
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn numbers_are_compared_as_numbers() {
        assert!(is_older("0.9.1", "0.10.0"));
        assert!(is_older("1.0", "1.0.1"));
        assert!(!is_older("0.1.0", "0.1.0"));
        assert!(!is_older("2.0.0", "1.9.9"));
        assert!(is_older("next", "0.1.0"));
    }
}
