//! What is nobody's to check in a review: where `unsafe` is, and that nothing lies around unused.

use std::collections::BTreeSet;
use std::path::Path;

use pg_expiry_tests::repository;

/// A line without its comment and its strings. Good enough for keywords; no raw string of ours has them.
fn code_of(line: &str) -> String {
    let without_strings: String = line.replace("\\\"", "").split('"').step_by(2).collect();
    without_strings.split("//").next().unwrap_or_default().to_owned()
}

/// Whether the line has an unsafe block, function, implementation, trait or extern block, and not only a type of such a
/// function or an attribute.
fn is_unsafe(line: &str) -> bool {
    let code = code_of(line);
    code.match_indices("unsafe").any(|(at, word)| {
        let (before, after) = (&code[..at], code[at + word.len()..].trim_start());
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            && !code[at + word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_type = after.trim_start_matches("extern").trim_start().starts_with("fn(");
        is_word && !is_type && !after.starts_with('(')
    })
}

/// Whether a comment says why that is right, above the statement that this line belongs to or at its end; or, of a
/// function, what its caller has to see to.
fn has_reason(lines: &[&str], n: usize) -> bool {
    let is_reason = |line: &str| line.contains("// SAFETY:") || line.ends_with("/// # Safety");
    if is_reason(lines[n]) {
        return true;
    }
    for line in lines[..n].iter().rev() {
        let line = line.trim();
        if line.starts_with("//") {
            if is_reason(line) {
                return true;
            }
        } else if line.is_empty() || line.ends_with([';', '}', '{']) && !line.starts_with('#') {
            return false;
        }
    }
    false
}

#[test]
fn unsafe_is_in_one_folder_and_has_its_reasons() {
    let mut elsewhere = Vec::new();
    let mut without_reason = Vec::new();
    let mut seen = 0;
    for file in repository::files("", "rs") {
        let text = repository::read(&file);
        let lines: Vec<&str> = text.lines().collect();
        for n in (0..lines.len()).filter(|n| is_unsafe(lines[*n])) {
            let at = format!("{file}:{}: {}", n + 1, lines[n].trim());
            if !file.starts_with("src/pg/") {
                elsewhere.push(at);
            } else if !has_reason(&lines, n) {
                without_reason.push(at);
            }
            seen += 1;
        }
    }
    assert!(elsewhere.is_empty(), "outside of src/pg/: {elsewhere:#?}");
    assert!(without_reason.is_empty(), "without a SAFETY comment: {without_reason:#?}");
    assert!(seen > 0, "nothing was found, which cannot be");
}

#[test]
fn unsafe_and_its_reasons_are_found() {
    let text = [
        "// SAFETY: so",
        "let x = f(",
        "    unsafe { y },",
        ");",
        "unsafe { z }",
        "// unsafe { }",
        "g(\"unsafe {\");",
    ];
    let found: Vec<usize> = (0..text.len()).filter(|n| is_unsafe(text[*n])).collect();
    assert_eq!(found, [2, 4]);
    assert!(has_reason(&text, 2) && !has_reason(&text, 4));
    assert!(is_unsafe("pub unsafe extern \"C-unwind\" fn f() {") && is_unsafe("unsafe impl A for B {"));
    assert!(
        !is_unsafe("    unsafe extern \"C-unwind\" fn(*mut A) -> bool;")
            && !is_unsafe("#[unsafe(no_mangle)]")
    );
}

/// The files that are crate roots, by the manifests.
fn roots() -> Vec<String> {
    let mut roots = Vec::new();
    for manifest in repository::files("", "toml").iter().filter(|name| name.ends_with("Cargo.toml")) {
        let folder = manifest.trim_end_matches("Cargo.toml");
        let text = repository::read(manifest);
        let named = text.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
        let usual = ["src/lib.rs", "src/main.rs", "build.rs"].into_iter();
        let usual = usual.filter(|path| repository::root().join(folder).join(path).exists());
        roots.extend(named.chain(usual).map(|path| format!("{folder}{path}")));
    }
    roots
}

/// The files of the modules that this file declares.
fn modules(file: &str) -> Vec<String> {
    let text = repository::read(file);
    let path = Path::new(file);
    let (folder, stem) = (path.parent().expect("a folder"), path.file_stem().expect("a name"));
    // The folder of a module's own modules.
    let own = if stem == "mod" || stem == "lib" || stem == "main" {
        folder.to_path_buf()
    } else {
        folder.join(stem)
    };
    let mut named: Option<&str> = None;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(path) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            named = Some(path);
            continue;
        }
        let word = line
            .strip_suffix(';')
            .and_then(|rest| rest.rsplit_once("mod "))
            .filter(|(before, _)| before.is_empty() || before.starts_with("pub") && !before.contains("use"));
        let Some((_, module)) = word else { continue };
        let candidates = match named.take() {
            Some(path) => vec![folder.join(path)],
            None => vec![own.join(format!("{module}.rs")), own.join(module).join("mod.rs")],
        };
        let there = candidates
            .iter()
            .filter_map(|path| repository::normal(path))
            .find(|path| repository::root().join(path).exists());
        found.extend(there.map(|path| path.to_string_lossy().into_owned()));
    }
    found
}

#[test]
fn every_rust_file_is_part_of_a_crate() {
    let mut reached: BTreeSet<String> = BTreeSet::new();
    let mut to_read = roots();
    assert!(to_read.iter().any(|root| root == "pgrx-tests/tests/main.rs"), "{to_read:?}");
    while let Some(file) = to_read.pop() {
        if reached.insert(file.clone()) {
            to_read.extend(modules(&file));
        }
    }
    let unreached: Vec<String> =
        repository::files("", "rs").into_iter().filter(|file| !reached.contains(file)).collect();
    assert!(unreached.is_empty(), "no crate has {unreached:#?}");
}

#[test]
fn every_script_is_named_somewhere() {
    let scripts = repository::files("scripts", "sh");
    assert!(!scripts.is_empty());
    let mut others: Vec<String> = ["Makefile", ".ci/run"].map(str::to_owned).to_vec();
    others.extend(scripts.iter().cloned());
    others.extend(repository::files("pgrx-tests", "rs"));
    let texts: Vec<(String, String)> =
        others.into_iter().map(|name| (name.clone(), repository::read(&name))).collect();
    let unnamed: Vec<&String> = scripts
        .iter()
        .filter(|script| {
            let name = script.rsplit('/').next().expect("a name");
            !texts.iter().any(|(other, text)| other != *script && text.contains(name))
        })
        .collect();
    assert!(unnamed.is_empty(), "nothing calls {unnamed:?}");
}

/// Each page is in the book once.
#[test]
fn every_page_is_in_the_book() {
    let summary = repository::read("docs/SUMMARY.md");
    let listed: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|to| !to.is_empty())
        .collect();
    let pages = repository::files("docs", "md");
    let pages = pages.iter().filter(|page| *page != "docs/SUMMARY.md");
    let times = |page: &str| listed.iter().filter(|to| format!("docs/{to}") == page).count();
    let amiss: Vec<&String> = pages.filter(|page| times(page) != 1).collect();
    assert!(amiss.is_empty(), "not once in docs/SUMMARY.md: {amiss:?}");
}
