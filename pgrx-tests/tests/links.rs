//! Every relative link in the Markdown files leads to a file that is there, and to a heading in it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use pg_expiry_tests::repository;

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|(n, line)| (n + 1, line)).collect()
}

/// The targets of the links in a line of prose.
fn links(line: &str) -> Vec<String> {
    // What is code in the line is none; the text of a link may be code.
    let text: String = line.split('`').step_by(2).collect();
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let defined =
        text.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
    inline.chain(defined).map(str::to_owned).collect()
}

/// How GitHub and mdBook name a heading: letters, digits, `-` and `_`, in lower case.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ if c.is_alphanumeric() => Some(c),
        _ => None,
    });
    letters.collect::<String>().to_lowercase()
}

fn anchors(text: &str) -> HashSet<String> {
    let mut times: HashMap<String, usize> = HashMap::new();
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    let named = headings.map(|(_, line)| {
        let anchor = anchor(line.trim_start_matches('#'));
        let seen = times.entry(anchor.clone()).or_default();
        *seen += 1;
        if *seen == 1 { anchor } else { format!("{anchor}-{}", *seen - 1) }
    });
    named.collect()
}

/// What is wrong with a link of this file.
fn fault(file: &str, target: &str) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        PathBuf::from(file)
    } else {
        let Some(path) = repository::normal(&Path::new(file).parent().expect("a folder").join(path)) else {
            return Some("leads out of the repository");
        };
        path
    };
    if !repository::root().join(&path).exists() {
        return Some("no such file");
    }
    if heading.is_empty() {
        return None;
    }
    let text = repository::read(&path.to_string_lossy());
    (!anchors(&text).contains(heading)).then_some("no such heading")
}

#[test]
fn links_lead_somewhere() {
    let mut seen = 0;
    let mut faults = Vec::new();
    for file in repository::files("", "md") {
        let text = repository::read(&file);
        for (line, target) in
            prose(&text).iter().flat_map(|(n, line)| links(line).into_iter().map(move |l| (*n, l)))
        {
            seen += 1;
            faults
                .extend(fault(&file, &target).map(|fault| format!("{file}, line {line}: {target}: {fault}")));
        }
    }
    println!("{seen} links");
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(seen > 0);
}

#[test]
fn links_and_headings_are_found() {
    let text = "# A b: `c_d`, e-f\n[x](y.md#z) and [`f(x)`](g.md)\n```\n# no\n[no](no)\n```\n`[no](no)`\n## 中 文\n## X\n## X\n";
    let found: Vec<String> = prose(text).into_iter().flat_map(|(_, line)| links(line)).collect();
    assert_eq!(found, ["y.md#z", "g.md"]);
    let expected = ["a-b-c_d-e-f", "中-文", "x", "x-1"].map(str::to_owned);
    assert_eq!(anchors(text), HashSet::from(expected));
    assert_eq!(fault("docs/events.md", "../README.md#install"), None);
    assert_eq!(fault("docs/events.md", "../README.md#no-such"), Some("no such heading"));
    assert_eq!(fault("docs/events.md", "no-such.md"), Some("no such file"));
    assert_eq!(fault("docs/events.md", "../../etc"), Some("leads out of the repository"));
}
