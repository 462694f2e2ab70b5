//! Every SQL object has a comment; docs/sql-reference.md and docs/settings.md are what the catalog says.
//!
//! `PG_EXPIRY_BLESS=1 make test TESTS=reference` writes the pages anew.

mod markdown;
mod settings;
mod sql;

use std::collections::BTreeSet;
use std::fs;

use pg_expiry_tests::{Db, repository};

/// A page is what was generated; or becomes so, if that is wished for.
#[track_caller]
fn check_page(name: &str, generated: &str) {
    if std::env::var_os("PG_EXPIRY_BLESS").is_some() {
        fs::write(repository::root().join(name), generated).expect("the page is written");
    }
    let written = repository::read(name);
    let differs =
        written.lines().zip(generated.lines()).position(|(written, generated)| written != generated);
    let line = differs.unwrap_or_else(|| written.lines().count().min(generated.lines().count()));
    assert!(
        written == generated,
        "{name} is out of date; PG_EXPIRY_BLESS=1 make test TESTS=reference writes it anew.\n\
         line {} is    {:?}\nand should be {:?}",
        line + 1,
        written.lines().nth(line),
        generated.lines().nth(line)
    );
}

/// Whatever belongs to the extension and can have a comment; columns, policies, triggers and indexes belong to it
/// with their tables. (An index behind a constraint goes by the constraint's name; a row's type, a member since
/// PostgreSQL 17, by the relation's.)
const OBJECTS: &str = "
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_expiry'
), relation AS (
    SELECT objid FROM member WHERE classid = 'pg_class'::regclass
), object AS (
    SELECT classid, objid, 0 AS number FROM member
        WHERE classid <> 'pg_type'::regclass OR objid NOT IN (
            SELECT unnest(ARRAY[oid, typarray]) FROM pg_type WHERE typrelid <> 0)
    UNION ALL SELECT 'pg_extension'::regclass, oid, 0 FROM pg_extension WHERE extname = 'pg_expiry'
    UNION ALL SELECT 'pg_namespace'::regclass, extnamespace, 0 FROM pg_extension WHERE extname = 'pg_expiry'
    UNION ALL SELECT 'pg_class'::regclass, a.attrelid, a.attnum
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE a.attrelid IN (SELECT objid FROM relation) AND c.relkind <> 'S' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT 'pg_policy'::regclass, oid, 0 FROM pg_policy WHERE polrelid IN (SELECT objid FROM relation)
    UNION ALL SELECT 'pg_trigger'::regclass, oid, 0
        FROM pg_trigger WHERE tgrelid IN (SELECT objid FROM relation) AND NOT tgisinternal
    UNION ALL SELECT 'pg_class'::regclass, indexrelid, 0 FROM pg_index
        WHERE indrelid IN (SELECT objid FROM relation)
          AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
)
SELECT classid::regclass::text, pg_describe_object(classid, objid, number),
       CASE number WHEN 0 THEN obj_description(objid, classid::regclass::text) ELSE col_description(objid, number) END
FROM object ORDER BY 2";

#[test]
fn every_object_has_a_comment() {
    let db = Db::with_extension();
    let objects = db.connect().query(OBJECTS, &[]).unwrap();
    let catalogs: BTreeSet<&str> = objects.iter().map(|object| object.get(0)).collect();
    for catalog in ["pg_class", "pg_extension", "pg_namespace", "pg_policy", "pg_proc"] {
        assert!(catalogs.contains(catalog), "no object of {catalog} was looked at: {catalogs:?}");
    }
    // PostgreSQL shows the extension's comment as a title; the others are sentences.
    let is_said = |catalog: &str, comment: Option<&str>| {
        comment.is_some_and(|comment| {
            !comment.is_empty() && (catalog == "pg_extension" || comment.ends_with('.'))
        })
    };
    let silent: Vec<&str> = objects
        .iter()
        .filter(|object| !is_said(object.get(0), object.get(2)))
        .map(|object| object.get(1))
        .collect();
    assert!(silent.is_empty(), "without a comment, or one that is no sentence: {silent:#?}");
}
