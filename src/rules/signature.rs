//! How a user names a function: `cancel_order(bigint)`, or by its name alone.

/// The name as it is written, and whether the argument types follow it. What is in double quotes is part of the
/// name, parentheses too.
pub fn split(text: &str) -> (&str, bool) {
    let mut is_quoted = false;
    let arguments = text.find(|c| {
        is_quoted ^= c == '"';
        c == '(' && !is_quoted
    });
    arguments.map_or((text, false), |at| (&text[..at], true))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn name_ends_where_the_arguments_begin() {
        for (text, name, has_arguments) in [
            ("cancel_order(bigint)", "cancel_order", true),
            ("shop.cancel_order", "shop.cancel_order", false),
            (" cancel ()", " cancel ", true),
            ("\"cancel (late)\"", "\"cancel (late)\"", false),
            ("\"a\"\"(\".\"b(\"(int)", "\"a\"\"(\".\"b(\"", true),
            ("\"never ends(", "\"never ends(", false),
            ("", "", false),
        ] {
            assert_eq!(split(text), (name, has_arguments), "{text}");
        }
    }
}
