//! The list of database names in `pg_expiry.databases`.

/// Whether `name` is in `list`: names separated by commas, in double quotes if they have commas or
/// spaces at their ends; `*` is every name.
pub fn is_listed(list: &str, name: &str) -> bool {
    let mut rest = list.trim_start();
    while !rest.is_empty() {
        let (entry, tail) = next(rest);
        if entry == "*" && !rest.starts_with('"') || entry == name {
            return true;
        }
        rest = tail.trim_start();
    }
    false
}

/// The first entry, and what follows its comma.
fn next(list: &str) -> (String, &str) {
    let Some(quoted) = list.strip_prefix('"') else {
        let (entry, tail) = list.split_once(',').unwrap_or((list, ""));
        return (entry.trim_end().to_owned(), tail);
    };
    let mut entry = String::new();
    let mut rest = quoted;
    while let Some((part, tail)) = rest.split_once('"') {
        entry.push_str(part);
        rest = tail;
        // A doubled quote stands for one.
        let Some(more) = rest.strip_prefix('"') else { break };
        entry.push('"');
        rest = more;
    }
    (entry, rest.split_once(',').map_or("", |(_, tail)| tail))
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    #[test]
    fn names_are_found() {
        for (list, name, expected) in [
            ("*", "shop", true),
            ("", "shop", false),
            ("shop", "shop", true),
            ("Shop", "shop", false),
            ("a, shop ,b", "shop", true),
            ("a,*", "shop", true),
            ("\"*\"", "shop", false),
            ("\"my, shop\", b", "my, shop", true),
            ("\"my, shop\", b", "b", true),
            ("\"a\"\"b\"", "a\"b", true),
            ("shops", "shop", false),
            (",,shop", "shop", true),
            ("\"shop", "shop", false),
        ] {
            assert_eq!(is_listed(list, name), expected, "{name} in {list}");
        }
    }
}
