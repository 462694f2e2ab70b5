//! Lists of names, signatures of functions, numbers of versions: whatever they are, they are read as they were written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_expiry_fuzz::lexer::quoted;
use pg_expiry_fuzz::rules::{names, signature, version};

fuzz_target!(|input: (String, Vec<String>, String)| {
    let (text, list, name) = input;

    // Anything may stand in postgresql.conf.
    let _ = names::is_listed(&text, &name);
    // Names in quotes, with any spaces around them.
    let written: Vec<String> = list.iter().map(|name| format!(" {} ", quoted(name))).collect();
    let written = written.join(",");
    for name in &list {
        assert!(names::is_listed(&written, name), "{name:?} in {written}");
    }
    assert_eq!(names::is_listed(&written, &name), list.contains(&name), "{name:?} in {written}");
    // A bare name is the same without quotes if it has nothing that needs them.
    if !name.is_empty() && name != "*" && name.trim() == name && !name.contains([',', '"']) {
        assert!(names::is_listed(&format!("{written}, {name}"), &name), "{name:?}");
        assert!(names::is_listed(&format!("{name} , {written}"), &name), "{name:?}");
    }
    assert!(names::is_listed(&format!("{written},*"), &name));

    let (function, has_arguments) = signature::split(&text);
    assert!(text.starts_with(function) && has_arguments == (function.len() < text.len()));
    let function = quoted(&name);
    assert_eq!(signature::split(&function), (function.as_str(), false));
    let with_arguments = format!("{}.{function}({text}", quoted(&text));
    assert_eq!(
        signature::split(&with_arguments),
        (&with_arguments[..with_arguments.len() - text.len() - 1], true)
    );

    assert!(!version::is_older(&text, &text));
    assert!(!(version::is_older(&text, &name) && version::is_older(&name, &text)));
});
