//! Comments as Markdown.

const WIDTH: usize = 120;

/// What is a name becomes code, what Markdown would take for its own is escaped.
pub fn marked(text: &str) -> String {
    text.split(' ').map(marked_word).collect::<Vec<_>>().join(" ")
}

fn marked_word(word: &str) -> String {
    let (mut core, mut tail) = (word.trim_start_matches('('), String::new());
    let head = &word[..word.len() - core.len()];
    while let Some(last) = core.chars().last().filter(|last| ".,;:)".contains(*last)) {
        if last == ')' && core.matches('(').count() >= core.matches(')').count() {
            break;
        }
        core = &core[..core.len() - 1];
        tail.insert(0, last);
    }
    let is_name =
        core != "pg_expiry" && (core.contains('_') || core.contains("()") || core.starts_with("expiry."));
    if is_name {
        format!("{head}`{core}`{tail}")
    } else {
        word.replace('<', "&lt;").replace('*', "\\*").replace('|', "\\|")
    }
}

/// In lines that are not too long; all but the first are indented.
pub fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("a line");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= WIDTH {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines.join("\n") + "\n"
}

/// The first row is the head.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let line = |cells: &[String; N]| format!("| {} |\n", cells.join(" | ")).replace("  |", " |");
    let (head, body) = rows.split_first().expect("a head");
    format!("{}|{}\n{}", line(head), "---|".repeat(N), body.iter().map(line).collect::<String>())
}

#[test]
fn names_become_code() {
    for (text, expected) in [
        ("Set by expiry.pause(), cleared.", "Set by `expiry.pause()`, cleared."),
        ("paused (by expiry.pause());", "paused (by `expiry.pause()`);"),
        ("as in cancel_order(bigint), so", "as in `cancel_order(bigint)`, so"),
        ("follows pg_expiry.<parameter>. pg_expiry, too", "follows `pg_expiry.<parameter>`. pg_expiry, too"),
        ("* stands for a < b (max_rows)", "\\* stands for a &lt; b (`max_rows`)"),
    ] {
        assert_eq!(marked(text), expected);
    }
}
