//! The SQL in the documents is run as it stands there, with psql against a real server.
//!
//! Every Markdown file of the repository is looked through. A ```sql block is run; when a ```text block follows it, it
//! is a query, and that is what it gives, by and by: workers need a moment. A text that begins with ERROR: is how the
//! block fails. `<!-- not run: why -->` before a block keeps it from being run, which is counted and printed.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, Endpoint, Installation, repository, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);
const NOT_RUN: &str = "<!-- not run:";
const ERROR: &str = "ERROR:";
/// Each of its chapters is run by itself.
const RECIPES: &str = "docs/recipes.md";
/// What a block of SQL could be called besides `sql`, and would not be run.
const OTHER_NAMES: [&str; 4] = ["SQL", "pgsql", "postgresql", "psql"];

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

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut heading, mut not_run) = (String::new(), None);
    // What follows a block of SQL, with nothing but empty lines between, may be its result.
    let mut follows_sql = false;
    let mut lines = document.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let text: Vec<&str> = lines
                .by_ref()
                .map(|(_, line)| line.get(indent..).unwrap_or_default())
                .take_while(|line| *line != "```")
                .collect();
            let text = text.join("\n");
            let is_sql_by_another_name =
                OTHER_NAMES.contains(&language) || language.starts_with("sql") && language != "sql";
            assert!(
                !is_sql_by_another_name,
                "line {}: ```{language} would not be run: call it ```sql",
                n + 1
            );
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
        if let Some(expected) = block.result.as_ref().filter(|expected| expected.starts_with(ERROR)) {
            let error = self.psql(&block.sql).expect_err(&at);
            // It begins with psql's name for the script, and a number of line.
            let (_, error) = error.split_at(error.find(ERROR).expect("an error"));
            assert_eq!(error.trim_end(), expected, "{at}");
            return;
        }
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
    let name = RECIPES;
    let all = blocks(&repository::read(name));
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
    let headings = repository::read(name).lines().filter(|line| line.starts_with("## ")).count();
    assert_eq!(done, headings, "{name}: a recipe without SQL");
}

/// All other documents: block after block in one database each. One that makes a table orders is run as it stands;
/// the others speak of tables that everybody has.
#[test]
fn sql_of_the_documents_runs() {
    let (mut run, mut not_run) = (Vec::new(), Vec::new());
    for name in repository::files("", "md").into_iter().filter(|name| name != RECIPES) {
        let all = blocks(&repository::read(&name));
        if all.is_empty() {
            continue;
        }
        let makes = |what: &str| all.iter().any(|block| block.sql.contains(what));
        let tables = if makes("CREATE TABLE orders") { "" } else { include_str!("documents.sql") };
        let reader = Reader::with_tables(tables);
        if !makes("CREATE EXTENSION") {
            reader.db.create_extension();
        }
        for block in &all {
            match &block.not_run {
                None => reader.run(&name, block),
                Some(why) => not_run.push(format!("{name}, line {}: {why}", block.line)),
            }
        }
        println!("{name}: {} blocks of SQL", all.len());
        run.push(name);
    }
    assert!(run.iter().any(|name| name == "README.md"), "{run:?}");
    println!("{} blocks of SQL are not run {not_run:#?}", not_run.len());
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
