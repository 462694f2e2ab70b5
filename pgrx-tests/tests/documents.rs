//! The SQL in the documents is run as it stands there, with psql against a real server.
//!
//! A ```sql block is run; when a ```text block follows it, it is a query, and that is what it gives, by and by:
//! workers need a moment. `<!-- not run: why -->` before a block keeps it from being run, which is counted and
//! printed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, Endpoint, Installation, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);
const NOT_RUN: &str = "<!-- not run:";

struct Block {
    /// Of its first line.
    line: usize,
    /// The heading of the second level that it stands under; empty before the first.
    heading: String,
    sql: String,
    /// What it gives, as `psql -At -F ' | '` shows it.
    result: Option<String>,
    not_run: Option<String>,
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut heading, mut not_run) = (String::new(), None);
    // What follows a block of SQL, with nothing but empty lines between, may be its result.
    let mut follows_sql = false;
    let mut lines = document.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let text = text.join("\n");
            let was_sql = std::mem::replace(&mut follows_sql, language == "sql");
            if language == "sql" {
                let not_run = not_run.take();
                blocks.push(Block {
                    line: n + 1,
                    heading: heading.clone(),
                    sql: text,
                    result: None,
                    not_run,
                });
            } else if language == "text" && was_sql {
                blocks.last_mut().expect("a block").result = Some(text);
            }
            continue;
        }
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut heading);
        }
        if let Some(why) = line.strip_prefix(NOT_RUN) {
            not_run = Some(why.trim_end_matches("-->").trim().to_owned());
        }
        follows_sql &= line.is_empty();
    }
    blocks
}

/// Where a document is run: a database with the extension or without, and whose it is.
struct Reader {
    db: Db,
    user: String,
    superuser: Client,
}

impl Reader {
    /// A role that may make tables, and no more.
    fn new() -> Reader {
        let db = Db::with_extension();
        let mut superuser = db.connect();
        let user = format!("reader_{}", db.name);
        superuser
            .batch_execute(&format!("CREATE ROLE {user} LOGIN; GRANT CREATE ON SCHEMA public TO {user}"))
            .unwrap();
        Reader { db, user, superuser }
    }

    /// Of a database that has only these tables.
    fn with_tables(sql: &str) -> Reader {
        let db = Db::new();
        let mut superuser = db.connect();
        superuser.batch_execute(sql).unwrap();
        Reader { db, user: Endpoint::SUPERUSER.to_owned(), superuser }
    }

    /// What psql prints, or what went wrong.
    fn psql(&self, sql: &str) -> Result<String, String> {
        let mut command = Command::new(Installation::get().program("psql"));
        command.args(["-X", "-q", "-A", "-t", "-F", " | ", "-v", "ON_ERROR_STOP=1", "-f", "-"]);
        command.env("PGHOST", self.db.endpoint.host()).env("PGPORT", Endpoint::PORT.to_string());
        command.env("PGUSER", &self.user).env("PGDATABASE", &self.db.name);
        command.env("PGOPTIONS", "-c statement_timeout=60s -c client_min_messages=warning");
        let mut psql = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("psql");
        psql.stdin.take().expect("its input").write_all(sql.as_bytes()).expect("psql reads");
        let output = psql.wait_with_output().expect("psql's output");
        if output.status.success() {
            let lines = String::from_utf8_lossy(&output.stdout);
            Ok(lines.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Runs one block, and waits for its result if it has one.
    #[track_caller]
    fn run(&self, name: &str, block: &Block) {
        let at = format!("{name}, line {}", block.line);
        let Some(expected) = &block.result else {
            self.psql(&block.sql).unwrap_or_else(|error| panic!("{at}: {error}\n{}", block.sql));
            return;
        };
        assert!(block.sql.starts_with("SELECT") && block.sql.matches(';').count() == 1, "{at}: no query");
        wait_until(format_args!("{at}:\n{}\nto give\n{expected}\n", block.sql), PATIENCE, || {
            match self.psql(&block.sql) {
                Ok(result) if result == *expected => Ok(()),
                result => Err(result),
            }
        });
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.user != Endpoint::SUPERUSER {
            let user = &self.user;
            let _ = self.superuser.batch_execute(&format!(
                "SELECT expiry.stop_workers(); DROP OWNED BY {user} CASCADE; DROP ROLE {user}"
            ));
        }
    }
}

/// Each recipe, with what they have in common before it, and something to see at its end.
#[test]
fn recipes_do_what_they_say() {
    let name = "docs/recipes.md";
    let all = blocks(&document(name));
    let (common, recipes): (Vec<&Block>, Vec<&Block>) =
        all.iter().partition(|block| block.heading.is_empty());
    let mut done = 0;
    for recipe in recipes.chunk_by(|one, other| one.heading == other.heading) {
        let heading = &recipe[0].heading;
        assert!(recipe.iter().any(|block| block.result.is_some()), "{name}: nothing comes out of {heading}");
        let reader = Reader::new();
        for block in common.iter().chain(recipe) {
            assert!(block.not_run.is_none(), "{name}: a recipe has to run: {heading}");
            reader.run(name, block);
        }
        done += 1;
        println!("{name}: {heading}");
    }
    let headings = document(name).lines().filter(|line| line.starts_with("## ")).count();
    assert_eq!(done, headings, "{name}: a recipe without SQL");
}

/// README and the other documents: block after block in one database, with the tables that they speak of.
#[test]
fn sql_of_the_documents_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let paths = fs::read_dir(folder).expect("docs").map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path: PathBuf| format!("docs/{}", path.file_name().expect("a name").to_string_lossy()))
        .filter(|name| name != "docs/recipes.md")
        .collect();
    names.push("README.md".to_owned());
    let mut seen = 0;
    for name in names {
        let all = blocks(&document(&name));
        if all.is_empty() {
            continue;
        }
        let reader = Reader::with_tables(include_str!("documents.sql"));
        if !all[0].sql.contains("CREATE EXTENSION") {
            reader.db.create_extension();
        }
        let (run, not_run): (Vec<&Block>, Vec<&Block>) =
            all.iter().partition(|block| block.not_run.is_none());
        run.iter().for_each(|block| reader.run(&name, block));
        let why: Vec<String> = not_run
            .iter()
            .map(|block| format!("; line {} is not: {}", block.line, block.not_run.as_deref().unwrap_or("")))
            .collect();
        println!("{name}: {} blocks of SQL are run{}", run.len(), why.concat());
        seen += run.len();
    }
    assert!(seen >= 2, "README has blocks of SQL");
}

/// README's table of settings is what the server says of them.
#[test]
fn settings_of_readme_are_those_of_the_code() {
    let readme = document("README.md");
    let (_, table) = readme.split_once("<!-- settings:").expect("the table");
    let (table, _) = table.split_once("<!-- /settings -->").expect("its end");
    let written: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    let db = Db::with_extension();
    // As SHOW gives them in a server that has set nothing: the shared one has its own number of workers.
    let sql = "SELECT name, CASE WHEN unit IS NULL THEN boot_val
                   WHEN unit = 's' AND boot_val::numeric >= 86400 THEN boot_val::numeric::int / 86400 || 'd'
                   WHEN unit = 'ms' AND boot_val::numeric >= 60000 THEN boot_val::numeric::int / 60000 || 'min'
                   WHEN unit = 'ms' AND boot_val::numeric >= 1000 THEN boot_val::numeric::int / 1000 || 's'
                   WHEN boot_val = '0' THEN '0' ELSE boot_val || unit END, short_desc
               FROM pg_settings WHERE name LIKE 'pg\\_expiry.%' ORDER BY name";
    let mut client = db.connect();
    // The library registers them when it is first used.
    client.batch_execute("SELECT expiry.wake()").unwrap();
    let rows = client.query(sql, &[]).unwrap();
    let mut code: Vec<Vec<String>> = rows
        .iter()
        .map(|row| (0..3).map(|n| row.get::<_, Option<String>>(n).unwrap_or_default()).collect())
        .collect();
    let mut written: Vec<Vec<String>> =
        written.into_iter().map(|cells| cells.into_iter().map(str::to_owned).collect()).collect();
    code.sort();
    written.sort();
    assert_eq!(written, code);
}

/// The reading itself: what is a block, what is its result, what is not run.
#[test]
fn blocks_are_found() {
    let text = "# T\n```sql\nSELECT 1;\nSELECT 2;\n```\n\n```text\na\nb\n```\nand\n```text\nno result\n```\n## H\n\
                <!-- not run: so -->\n```sql\nX;\n```\nmore\n```text\nno\n```\n```python\nno\n```\n```sql\nY;\n```\n";
    let found: Vec<_> = blocks(text)
        .into_iter()
        .map(|block| (block.line, block.heading, block.sql, block.result, block.not_run))
        .collect();
    let own = str::to_owned;
    assert_eq!(
        found,
        [
            (2, own(""), own("SELECT 1;\nSELECT 2;"), Some(own("a\nb")), None),
            (17, own("H"), own("X;"), None, Some(own("so"))),
            (27, own("H"), own("Y;"), None, None),
        ]
    );
}
