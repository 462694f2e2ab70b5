//! docs/sql-reference.md: functions, views and tables of schema expiry, from the catalog and its comments.

use std::collections::BTreeSet;

use pg_expiry_tests::postgres::{Client, Row};
use pg_expiry_tests::{Db, repository};

use super::check_page;
use super::markdown::{marked, table, wrapped};

/// How a comment begins whose object is nobody's to use.
const INTERNAL: &str = "Internal";

/// What is for users, in the order of the page.
const FUNCTIONS: [(&str, &[&str]); 4] = [
    ("Policies", &["create_policy", "alter_policy", "drop_policy", "pause", "resume"]),
    ("Rows", &["preview", "why_not", "run", "retry", "restored", "wake"]),
    (
        "Events",
        &["events_after", "wait_for_events", "subscribe", "fetch_events", "ack_events", "unsubscribe"],
    ),
    ("Workers and counters", &["stop_workers", "start_workers", "reset_stats"]),
];
const VIEWS: [&str; 4] = ["status", "workers", "lateness", "consumers"];
const TABLES: [&str; 3] = ["policy", "event", "failure"];

const INTRO: &str = "\
# SQL reference

<!-- Generated from the catalog: PG_EXPIRY_BLESS=1 make test TESTS=reference -->

What `CREATE EXTENSION pg_expiry` makes in the schema `expiry`, as the comments in the catalog tell it; in psql,
`\\df+ expiry.*` and `\\d+ expiry.*` show the same. Parameters can be given by name: `pause(name => 'orders')`.

*A policy that you may act for* is one on a relation whose owner you are, or of whose role you are a member. What an
error says besides its SQLSTATE is in its message, detail and hint.
";

/// Those of the extension, by name.
const ROUTINES: &str = "
SELECT p.proname::text, p.prokind::text, obj_description(p.oid, 'pg_proc'),
       CASE WHEN p.prorettype <> 0 THEN format_type(p.prorettype, NULL) END, p.proretset,
       has_function_privilege('public', p.oid, 'EXECUTE'),
       ARRAY(SELECT coalesce(p.proargnames[n], '') FROM generate_series(1, cardinality(a.types)) n),
       ARRAY(SELECT coalesce(p.proargmodes[n]::text, 'i') FROM generate_series(1, cardinality(a.types)) n),
       ARRAY(SELECT format_type(t, NULL) FROM unnest(a.types) WITH ORDINALITY u(t, n) ORDER BY n),
       ARRAY(SELECT coalesce(pg_get_function_arg_default(p.oid, n), '') FROM generate_series(1, cardinality(a.types)) n)
FROM pg_proc p CROSS JOIN LATERAL (SELECT coalesce(p.proallargtypes, p.proargtypes::oid[]) AS types) a
JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_expiry'
ORDER BY p.proname";

const RELATIONS: &str = "
SELECT c.oid, c.relname::text, c.relkind::text, obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT DISTINCT x.privilege_type FROM aclexplode(c.relacl) x WHERE x.grantee = 0 ORDER BY 1),
       (SELECT obj_description(p.oid, 'pg_policy') FROM pg_policy p WHERE p.polrelid = c.oid)
FROM pg_class c
JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_expiry'
ORDER BY c.relname";

const COLUMNS: &str = "
SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, col_description(attrelid, attnum)
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum";

/// The names that one writes.
fn short(name: &str) -> String {
    name.replace("timestamp with time zone", "timestamptz").replace("integer", "int").replace("expiry.", "")
}

struct Routine {
    name: String,
    is_procedure: bool,
    comment: String,
    result: Option<String>,
    is_for_public: bool,
    /// Name, type and default.
    inputs: Vec<(String, String, Option<String>)>,
}

impl Routine {
    fn of(row: &Row) -> Routine {
        let [names, modes, types, defaults] = [6_usize, 7, 8, 9].map(|n| row.get::<_, Vec<String>>(n));
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (n, name) in names.into_iter().enumerate() {
            if modes[n] == "i" {
                // A default is an expression with its type: '30 seconds'::interval.
                let default = defaults[n].split("::").next().filter(|default| !default.is_empty());
                inputs.push((name, short(&types[n]), default.map(str::to_owned)));
            } else {
                outputs.push((name, short(&types[n])));
            }
        }
        let result = row.get::<_, Option<String>>(3).map(|result| {
            let result = if outputs.is_empty() { short(&result) } else { format!("({})", listed(&outputs)) };
            if row.get(4) { format!("SETOF {result}") } else { result }
        });
        Routine {
            name: row.get(0),
            is_procedure: row.get::<_, &str>(1) == "p",
            comment: row.get::<_, Option<String>>(2).unwrap_or_default(),
            result: result.filter(|_| row.get::<_, &str>(1) != "p"),
            is_for_public: row.get(5),
            inputs,
        }
    }

    fn signature(&self) -> String {
        let call = if self.is_procedure { "CALL " } else { "" };
        let result = self.result.as_ref().map_or(String::new(), |result| format!(" → {result}"));
        let parameter = |(name, of, default): &(String, String, Option<String>)| match default {
            Some(default) => format!("{name} {of} DEFAULT {default}"),
            None => format!("{name} {of}"),
        };
        let parameters: Vec<String> = self.inputs.iter().map(parameter).collect();
        let line = format!("{call}expiry.{}({}){result}", self.name, parameters.join(", "));
        if line.chars().count() <= 100 {
            return line;
        }
        let width = |part: fn(&(String, String, Option<String>)) -> usize| {
            self.inputs.iter().map(part).max().unwrap_or(0)
        };
        let (names, types) = (width(|input| input.0.len()), width(|input| input.1.len()));
        let lines = self.inputs.iter().map(|(name, of, default)| {
            let default = default.as_ref().map_or(String::new(), |default| format!("DEFAULT {default}"));
            format!("    {name:names$}  {of:types$}  {default}").trim_end().to_owned()
        });
        format!("{call}expiry.{}(\n{}\n){result}", self.name, lines.collect::<Vec<_>>().join(",\n"))
    }

    fn section(&self) -> String {
        let (text, errors) = match self.comment.split_once(" Errors: ") {
            Some((text, errors)) => (text, errors.trim_end_matches('.')),
            None => (self.comment.as_str(), ""),
        };
        let mut section = format!("### {}\n\n```text\n{}\n```\n\n", self.name, self.signature());
        section += &wrapped(&marked(text), "");
        if !self.is_for_public {
            section += "\nNot for everybody: EXECUTE is not granted to PUBLIC.\n";
        }
        if !errors.is_empty() {
            section += "\nErrors:\n\n";
            section
                .extend(errors.split("; ").map(|error| wrapped(&format!("- {}", error_line(error)), "  ")));
        }
        section + "\n"
    }
}

/// `42501 not its owner`, with the code as code.
fn error_line(error: &str) -> String {
    let is_code = |word: &str| {
        word.len() == 5
            && word.contains(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase())
    };
    let words = error.split(' ').map(|word| {
        let code = word.trim_end_matches(',');
        if is_code(code) { format!("`{code}`{}", &word[code.len()..]) } else { marked(word) }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn listed(outputs: &[(String, String)]) -> String {
    outputs.iter().map(|(name, of)| format!("{name} {of}")).collect::<Vec<_>>().join(", ")
}

struct Relation {
    oid: u32,
    name: String,
    is_view: bool,
    kind: &'static str,
    comment: String,
    granted: Vec<String>,
    /// What the row security policy says.
    rows: Option<String>,
}

impl Relation {
    fn of(row: &Row) -> Relation {
        let kind = match row.get::<_, &str>(2) {
            "r" => "table",
            "v" => "view",
            "S" => "sequence",
            other => panic!("a relation of kind {other} is new"),
        };
        Relation {
            oid: row.get(0),
            name: row.get(1),
            is_view: kind == "view",
            kind,
            comment: row.get::<_, Option<String>>(3).unwrap_or_default(),
            granted: row.get(4),
            rows: row.get(5),
        }
    }

    fn section(&self, client: &mut Client) -> String {
        let mut section = format!("### {}\n\n{}\n", self.name, wrapped(&marked(&self.comment), ""));
        let granted = match &self.granted[..] {
            [] => "nothing".to_owned(),
            granted => granted.join(", "),
        };
        let rows = self.rows.as_ref().map_or(String::new(), |rows| format!(" Rows: {}", marked(rows)));
        section += &wrapped(&format!("Granted to PUBLIC: {granted}.{rows}"), "");
        let head = ["column", "type", "meaning"].map(str::to_owned);
        let mut cells = vec![head];
        for column in client.query(COLUMNS, &[&self.oid]).unwrap() {
            let comment: Option<String> = column.get(3);
            let of = short(column.get(1));
            let of = if column.get(2) { format!("{of} NOT NULL") } else { of };
            cells.push([format!("`{}`", column.get::<_, &str>(0)), of, marked(&comment.unwrap_or_default())]);
        }
        format!("{section}\n{}\n", table(&cells))
    }
}

/// The names that are not internal, which have to be these.
#[track_caller]
fn check_all_there<'a>(what: &str, public: impl Iterator<Item = &'a str>, listed: &[&str]) {
    let (public, listed): (BTreeSet<&str>, BTreeSet<&str>) =
        (public.collect(), listed.iter().copied().collect());
    assert_eq!(public, listed, "{what}, those that are not internal and those of the page");
}

fn is_internal(comment: &str) -> bool {
    comment.starts_with(INTERNAL)
}

#[test]
fn page_of_sql_is_what_the_catalog_says() {
    let db = Db::with_extension();
    let mut client = db.connect();
    let routines: Vec<Routine> = client.query(ROUTINES, &[]).unwrap().iter().map(Routine::of).collect();
    let relations: Vec<Relation> = client.query(RELATIONS, &[]).unwrap().iter().map(Relation::of).collect();

    let public = routines.iter().filter(|routine| !is_internal(&routine.comment));
    let on_page: Vec<&str> = FUNCTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    check_all_there("functions", public.map(|routine| routine.name.as_str()), &on_page);
    let of = |is_view| {
        let wanted = relations.iter().filter(move |relation| relation.is_view == is_view);
        wanted.filter(|relation| !is_internal(&relation.comment)).map(|relation| relation.name.as_str())
    };
    check_all_there("views", of(true), &VIEWS);
    check_all_there("tables", of(false), &TABLES);

    let mut page = INTRO.to_owned();
    for (group, names) in FUNCTIONS {
        page += &format!("\n## {group}\n\n");
        for name in names {
            let found: Vec<&Routine> = routines.iter().filter(|routine| routine.name == *name).collect();
            let [routine] = found[..] else { panic!("{name} is overloaded") };
            page += &routine.section();
        }
        page.pop();
    }
    for (kind, names) in [("Views", &VIEWS[..]), ("Tables", &TABLES[..])] {
        page += &format!("\n## {kind}\n\n");
        if kind == "Tables" {
            page += "They are written through the functions only.\n\n";
        }
        for name in names {
            let relation = relations.iter().find(|relation| relation.name == *name).expect("it is there");
            page += &relation.section(&mut client);
        }
        page.pop();
    }
    page += "\n## Internal\n\nNot for use; anything here may change with any version.\n\n";
    let mut internal = vec![["object", "what it is"].map(str::to_owned)];
    for routine in routines.iter().filter(|routine| is_internal(&routine.comment)) {
        internal.push([format!("function `{}`", routine.name), what_for(&routine.comment)]);
    }
    for relation in relations.iter().filter(|relation| is_internal(&relation.comment)) {
        internal.push([format!("{} `{}`", relation.kind, relation.name), what_for(&relation.comment)]);
    }
    check_page("docs/sql-reference.md", &(page + &table(&internal)));
}

/// An internal object's comment without the word.
fn what_for(comment: &str) -> String {
    let rest = comment[INTERNAL.len()..].trim_start_matches([':', ',', ' ']);
    let mut letters = rest.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    marked(&first.chain(letters).collect::<String>())
}

/// README's table of functions has every one that is for users, and no other.
#[test]
fn functions_of_readme_are_those_of_the_page() {
    let readme = repository::read("README.md");
    let (_, rest) = readme.split_once("| function | what it does |\n").expect("the table");
    let (table, _) = rest.split_once("\n\n").expect("its end");
    let cells = table.lines().skip(1).filter_map(|line| line.split('|').nth(1));
    let named: Vec<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|code| code.trim_start_matches("CALL ").split('(').next().expect("a name"))
        .collect();
    let on_page: Vec<&str> = FUNCTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    check_all_there("functions of README", named.into_iter(), &on_page);
}
