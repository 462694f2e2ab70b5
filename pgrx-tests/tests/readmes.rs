//! README.md and README.zh-CN.md say the same: what is run, set and linked to in one is in the other.

use pg_expiry_tests::repository;

const NAMES: [&str; 2] = ["README.md", "README.zh-CN.md"];

fn readmes() -> [String; 2] {
    NAMES.map(repository::read)
}

/// Blocks with a language, the language included: SQL and what comes out.
fn blocks(readme: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(format!("{language}\n{}", text.join("\n")));
        }
    }
    blocks
}

/// Names and defaults, in order.
fn settings(readme: &str) -> Vec<(&str, &str)> {
    let (_, table) = readme.split_once("<!-- settings:").expect("the table");
    let (table, _) = table.split_once("<!-- /settings -->").expect("its end");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells = cells(row);
        (cells[0], cells[1])
    })
    .collect()
}

/// Names and figures of the table of figures, in order.
fn figures(readme: &str) -> Vec<(&str, Vec<&str>)> {
    let (_, table) = readme.split_once("<!-- figures:").expect("the figures");
    let (table, _) = table.split_once("<!-- /figures -->").expect("their end");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| {
        let mut cells = cells(row);
        (cells.remove(0), cells)
    })
    .collect()
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// What is linked to within the project, but for headings of the page itself and the other README.
fn links(readme: &str) -> Vec<&str> {
    let targets =
        readme.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let mut links: Vec<&str> =
        targets.filter(|target| !target.starts_with('#') && !NAMES.contains(target)).collect();
    links.sort_unstable();
    links
}

#[test]
fn both_readmes_have_the_same_sql() {
    let [english, chinese] = readmes().map(|readme| blocks(&readme));
    assert!(english.iter().any(|block| block.starts_with("sql\n")));
    assert_eq!(chinese, english);
}

#[test]
fn both_readmes_have_the_same_settings() {
    let [english, chinese] = &readmes();
    assert!(!settings(english).is_empty());
    assert_eq!(settings(chinese), settings(english));
}

#[test]
fn both_readmes_have_the_same_sections_and_links() {
    let [english, chinese] = &readmes();
    let levels = |readme: &str| -> Vec<usize> {
        let headings = readme.lines().filter(|line| line.starts_with("##"));
        headings.map(|line| line.chars().take_while(|&c| c == '#').count()).collect()
    };
    assert_eq!(levels(chinese), levels(english));
    assert_eq!(links(chinese), links(english));
    assert!(english.contains("](README.zh-CN.md)") && chinese.contains("](README.md)"));
}

/// Each figure is one of that name in the report, which only `make bench` writes.
#[test]
fn figures_of_both_readmes_are_those_of_the_benchmarks() {
    let report = repository::read("docs/benchmarks.md");
    let [english, chinese] = &readmes();
    let measured = figures(english);
    assert!(measured.len() > 5, "{measured:?}");
    for (name, figures) in &measured {
        let name = name.split(',').next().expect("a name");
        for figure in figures {
            let is_it =
                |row: &str| row.starts_with("| ") && row.contains(name) && cells(row).contains(figure);
            assert!(report.lines().any(is_it), "{name}: {figure}");
        }
    }
    let only_figures = |rows: Vec<(&str, Vec<&str>)>| -> Vec<String> {
        rows.into_iter().map(|(_, figures)| figures.join(" ")).collect()
    };
    assert_eq!(only_figures(figures(chinese)), only_figures(measured));
}
