//! docs/settings.md: every setting, as pg_settings has it, in the order of README's table.

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, repository};

use super::check_page;
use super::markdown::{marked, table};

const INTRO: &str = "\
# Settings

<!-- Generated from pg_settings: PG_EXPIRY_BLESS=1 make test TESTS=reference -->

All settings begin with `pg_expiry.`. The *context* says where a setting can be set:

| context | where |
|---|---|
| `sighup` | postgresql.conf or `ALTER SYSTEM` |
| `superuser` | there too, and `ALTER DATABASE ... SET` by superusers: a database's value wins |

A reload (`SELECT pg_reload_conf()`) is followed within a second, without a restart. In a session, for a role, or among
the options of a connection they are refused (55P02): the settings are the workers', and no worker would see that value.
Only superusers set them, since they name functions that run with other roles' rights.

`SELECT name, setting, unit, source FROM pg_settings WHERE name LIKE 'pg\\_expiry.%'` shows what is in force.
";

const WORKERS: &str = "
## Workers
";

const POLICIES: &str = "
## Defaults of policies

Each parameter of [`create_policy()`](sql-reference.md#create_policy) that a policy leaves open follows the setting of the
same name, also when that changes later. So a shop with one table of orders may configure all of it here.
`expiry.policy` shows NULL where a policy follows the setting.
";

struct Setting {
    name: String,
    kind: String,
    unit: Option<String>,
    default: String,
    range: Option<(String, String)>,
    context: String,
    short: String,
    long: String,
}

const SETTINGS: &str = "
SELECT name, vartype, unit, coalesce(boot_val, ''), min_val, max_val, context, short_desc, coalesce(extra_desc, '')
FROM pg_settings WHERE name LIKE 'pg\\_expiry.%' ORDER BY name";

fn settings(client: &mut Client) -> Vec<Setting> {
    // The library registers them when it is first used.
    client.batch_execute("SELECT expiry.wake()").unwrap();
    let rows = client.query(SETTINGS, &[]).unwrap();
    let settings = rows.iter().map(|row| {
        let (min, max): (Option<String>, Option<String>) = (row.get(4), row.get(5));
        Setting {
            name: row.get(0),
            kind: row.get(1),
            unit: row.get(2),
            default: row.get(3),
            range: min.zip(max),
            context: row.get(6),
            short: row.get(7),
            long: row.get(8),
        }
    });
    settings.collect()
}

impl Setting {
    fn is_of_policies(&self) -> bool {
        self.short.starts_with("Default of the policies'")
    }

    /// As SHOW gives it: in the greatest unit that it is a whole number of.
    fn shown(&self, value: &str) -> String {
        let (Some(unit), Ok(number)) = (self.unit.as_deref(), value.parse::<f64>()) else {
            return value.to_owned();
        };
        let units: &[(&str, f64)] = match unit {
            "ms" => &[("d", 864e5), ("h", 36e5), ("min", 6e4), ("s", 1e3), ("ms", 1.0)],
            "s" => &[("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)],
            other => panic!("{}: unit {other} is new", self.name),
        };
        let (unit, size) = units.iter().find(|(_, size)| number % size == 0.0).expect("a whole number");
        if number == 0.0 { "0".into() } else { format!("{}{unit}", number / size) }
    }

    fn row(&self) -> [String; 6] {
        let kind = match self.unit.as_deref() {
            Some(unit) => format!("{}, {unit}", self.kind),
            None => self.kind.clone(),
        };
        let range = self
            .range
            .as_ref()
            .map_or(String::new(), |(min, max)| format!("{} … {}", self.shown(min), self.shown(max)));
        [
            format!("`{}`", self.name),
            kind,
            code(&self.shown(&self.default)),
            range,
            self.context.clone(),
            marked(format!("{} {}", self.short, self.long).trim()),
        ]
    }
}

fn code(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!("`{value}`") }
}

/// The cells of README's table.
fn table_of_readme() -> Vec<[String; 3]> {
    let readme = repository::read("README.md");
    let (_, table) = readme.split_once("<!-- settings:").expect("the table");
    let (table, _) = table.split_once("<!-- /settings -->").expect("its end");
    let lines = table.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<&str> =
                line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let [name, default, meaning] = cells[..] else { panic!("three cells: {line}") };
            [name.to_owned(), default.to_owned(), meaning.to_owned()]
        })
        .collect()
}

/// README's table is what a server says that has set nothing (the shared one has its own number of workers).
#[test]
fn settings_of_readme_are_those_of_the_server() {
    let db = Db::with_extension();
    let settings = settings(&mut db.connect());
    let mut said: Vec<[String; 3]> = settings
        .iter()
        .map(|setting| [setting.name.clone(), setting.shown(&setting.default), setting.short.clone()])
        .collect();
    let mut written = table_of_readme();
    said.sort();
    written.sort();
    assert_eq!(written, said);
}

#[test]
fn page_of_settings_is_what_the_server_says() {
    let order: Vec<String> = table_of_readme().into_iter().map(|[name, ..]| name).collect();
    let db = Db::with_extension();
    let mut settings = settings(&mut db.connect());
    settings.sort_by_key(|setting| order.iter().position(|name| *name == setting.name));
    let (of_policies, of_workers): (Vec<&Setting>, Vec<&Setting>) =
        settings.iter().partition(|setting| setting.is_of_policies());
    let rows = |settings: Vec<&Setting>| {
        let head = ["setting", "type", "default", "range", "context", "meaning"].map(str::to_owned);
        let rows: Vec<[String; 6]> =
            std::iter::once(head).chain(settings.into_iter().map(Setting::row)).collect();
        table(&rows)
    };
    let page = [INTRO, WORKERS, "\n", &rows(of_workers), POLICIES, "\n", &rows(of_policies)].concat();
    check_page("docs/settings.md", &page);
}
