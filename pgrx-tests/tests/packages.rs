//! The version stands in Cargo.toml; everything else that names it agrees. META.json is what PGXN takes.

use std::fs;
use std::path::Path;

use pg_expiry_tests::{Db, Installation, repository};
use serde_json::Value;

const THIS: &str = env!("CARGO_PKG_VERSION");

fn meta() -> Value {
    serde_json::from_str(&repository::read("META.json")).expect("JSON")
}

/// "## 0.1.0 (unreleased)" or "## 0.1.0 (2026-12-31)": the version, and the rest.
fn newest_change() -> (String, String) {
    let changelog = repository::read("CHANGELOG.md");
    let heading = changelog.lines().find_map(|line| line.strip_prefix("## ")).expect("an entry");
    let (version, when) = heading.split_once(' ').expect("a version and when it was released");
    (version.to_owned(), when.to_owned())
}

/// Names of the form pg_expiry--A.sql and pg_expiry--A--B.sql in a folder, without what they have in common.
fn scripts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    names
        .filter_map(|name| Some(name.strip_prefix("pg_expiry--")?.strip_suffix(".sql")?.to_owned()))
        .collect()
}

/// Three numbers, no sign and no zero before them.
fn is_semantic(version: &str) -> bool {
    let is_number = |n: &&str| n.parse::<u32>().is_ok_and(|number| number.to_string() == **n);
    let numbers: Vec<&str> = version.split('.').collect();
    numbers.len() == 3 && numbers.iter().all(is_number)
}

#[test]
fn version_is_the_same_everywhere() {
    assert!(is_semantic(THIS), "{THIS}");
    let meta = meta();
    assert_eq!(meta["version"], THIS);
    assert_eq!(meta["provides"]["pg_expiry"]["version"], THIS);
    assert_eq!(newest_change().0, THIS);
    assert!(repository::read("pg_expiry.control").contains("default_version = '@CARGO_VERSION@'"));

    // What the build has made of it.
    let folder = Installation::get().extension_folder();
    assert!(scripts(&folder).contains(&THIS.to_owned()), "{:?}", scripts(&folder));
    let control = fs::read_to_string(folder.join("pg_expiry.control")).expect("the control file");
    assert!(control.contains(&format!("default_version = '{THIS}'")), "{control}");
}

/// What the server and the library itself say.
#[test]
fn database_has_this_version() {
    let db = Db::with_extension();
    let mut client = db.connect();
    let installed: String = client
        .query_one("SELECT extversion FROM pg_extension WHERE extname = 'pg_expiry'", &[])
        .unwrap()
        .get(0);
    assert_eq!(installed, THIS);
    let has_modules =
        "SELECT to_regproc('pg_get_loaded_modules') IS NOT NULL, current_setting('server_version_num')::int";
    let row = client.query_one(has_modules, &[]).unwrap();
    assert_eq!(row.get::<_, bool>(0), row.get::<_, i32>(1) >= 180_000);
    if row.get(0) {
        let loaded =
            "SELECT module_name, version FROM pg_get_loaded_modules() WHERE file_name LIKE 'pg_expiry%'";
        let row = client.query_one(loaded, &[]).unwrap();
        assert_eq!((row.get(0), row.get(1)), ("pg_expiry", THIS));
    }
}

/// Each released version has its full script in sql/versions and the way to the next one in sql; the last way
/// leads here. So there is nothing as long as nothing is released.
#[test]
fn released_versions_lead_to_this_one() {
    let mut released = scripts(&repository::root().join("sql/versions"));
    let number =
        |version: &String| -> Vec<u32> { version.split('.').map(|n| n.parse().expect("a number")).collect() };
    released.sort_by_key(number);
    let is_unreleased = newest_change().1 == "(unreleased)";
    assert_eq!(released.contains(&THIS.to_owned()), !is_unreleased, "sql/versions/pg_expiry--{THIS}.sql");
    released.retain(|version| version != THIS);
    released.push(THIS.to_owned());
    let mut expected: Vec<String> =
        released.windows(2).map(|pair| format!("{}--{}", pair[0], pair[1])).collect();
    let mut ways = scripts(&repository::root().join("sql"));
    expected.sort();
    ways.sort();
    assert_eq!(ways, expected, "sql/pg_expiry--A--B.sql");

    // And CHANGELOG tells of each.
    let changelog = repository::read("CHANGELOG.md");
    for version in released {
        assert!(changelog.contains(&format!("\n## {version} (")), "{version}");
    }
}

/// The PGXN Meta Spec 1.0.0: what it requires, and the form of what it allows.
#[test]
fn meta_json_is_what_pgxn_takes() {
    let meta = meta();
    let known = "name version abstract description maintainer license release_status provides prereqs resources tags \
                 generated_by no_index meta-spec";
    let object = meta.as_object().expect("an object");
    assert_eq!(object.keys().find(|key| !known.split(' ').any(|one| one == *key)), None);
    assert_eq!(meta["meta-spec"]["version"], "1.0.0");
    assert_eq!(meta["name"], "pg_expiry");
    assert_eq!(meta["license"], "postgresql");
    for required in ["abstract", "description", "maintainer", "generated_by"] {
        assert!(meta[required].as_str().is_some_and(|text| text.len() > 3), "{required}");
    }
    let tags = meta["tags"].as_array().expect("tags");
    assert!(tags.iter().all(|tag| tag.as_str().is_some_and(|tag| !tag.is_empty() && tag.len() < 256)));

    let provides = meta["provides"].as_object().expect("an object");
    assert_eq!(provides.keys().collect::<Vec<_>>(), ["pg_expiry"]);
    let extension = &meta["provides"]["pg_expiry"];
    for file in ["file", "docfile"] {
        assert!(repository::root().join(extension[file].as_str().expect("a path")).is_file(), "{file}");
    }
    // The one that Cargo.toml calls by default is the oldest that it has.
    let oldest = repository::read("Cargo.toml")
        .lines()
        .find_map(|line| Some(line.strip_prefix("default = [\"pg")?[..2].to_owned()));
    let requires = meta["prereqs"]["runtime"]["requires"].as_object().expect("an object");
    assert_eq!(requires.keys().collect::<Vec<_>>(), ["PostgreSQL"]);
    assert_eq!(requires["PostgreSQL"], format!("{}.0.0", oldest.expect("the default")));
}

/// The image is of the newest server that there is a feature for, and built with the Rust that Cargo.toml asks for.
#[test]
fn dockerfile_names_versions_that_exist() {
    let (dockerfile, manifest) = (repository::read("Dockerfile"), repository::read("Cargo.toml"));
    let arguments = |name: &str| -> Vec<String> {
        let set = format!("ARG {name}=");
        dockerfile.lines().filter_map(|line| Some(line.strip_prefix(&set)?.to_owned())).collect()
    };
    let newest = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("pg")?.split_once(" = [\"pgrx/pg")?.0.parse().ok());
    assert_eq!(
        arguments("PG_MAJOR"),
        [newest.max().map(|newest: u32| newest.to_string()).expect("a feature")]
    );
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    assert_eq!(arguments("RUST_VERSION"), [rust.expect("rust-version")]);
    // What is loaded is what is copied.
    assert!(dockerfile.contains("shared_preload_libraries = 'pg_expiry'"), "{dockerfile}");
}

/// What is released says where it comes from and where one complains.
#[test]
fn released_version_has_an_address() {
    let meta = meta();
    let (_, when) = newest_change();
    if when == "(unreleased)" {
        assert_eq!(meta["release_status"], "unstable");
    } else {
        assert!(
            ["stable", "testing"].contains(&meta["release_status"].as_str().unwrap_or_default()),
            "{meta}"
        );
        for address in ["/resources/repository/url", "/resources/repository/web", "/resources/bugtracker/web"]
        {
            let text = meta.pointer(address).and_then(Value::as_str).unwrap_or_default();
            assert!(text.starts_with("https://") && !text.contains(".invalid"), "{address}: {text}");
        }
    }
    let known = ["homepage", "bugtracker", "repository"];
    let resources = meta
        .get("resources")
        .map_or_else(Default::default, |all| all.as_object().expect("an object").clone());
    assert_eq!(resources.keys().find(|key| !known.contains(&key.as_str())), None);
}
