//! contrib/monitoring: real exporters, a real Prometheus, each metric scraped, each alert fired and cleared.
//! `scripts/monitoring.sh` brings the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pg_expiry_tests::serde_json::{self, Value};
use pg_expiry_tests::{Cluster, Endpoint, Shop, Signal, repository, temporary_directory, wait_until};
use rustix::process::{Pid, kill_process_group};

use super::status::wait_for_state;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(90);

/// What takes the place of the minutes in the rules; those are tried by alerts_test.yml.
const WINDOW: &str = "10s";

fn contrib(file: &str) -> String {
    repository::read(&format!("contrib/monitoring/{file}"))
}

fn program(name: &str) -> PathBuf {
    let tests = env::current_exe().expect("our own path");
    // target/debug/deps/pg_expiry-0123
    tests.ancestors().nth(3).expect("the target folder").join("monitoring/usr/bin").join(name)
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("its number").port()
}

/// A program of ours; killed when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command, log: &Path) -> Running {
        let log = File::create(log).expect("a log");
        command.process_group(0).stdin(Stdio::null()).stderr(log.try_clone().expect("a log")).stdout(log);
        Running(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().cast_signed()).expect("a pid");
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Both exporters of one shop, and a Prometheus that scrapes them every second.
struct Watch {
    shop: Shop,
    port: u16,
    folder: PathBuf,
    _running: [Running; 3],
    _cluster: Cluster,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Watch {
    fn new() -> Watch {
        // 64 KB of the notification queue count as half: see `pg/debug_point.rs`.
        let cluster = Cluster::builder().setting("pg_expiry_debug.queue_scale", "65536").start();
        let mut shop = Shop::in_database(cluster.create_database());
        shop.db.create_extension();
        shop.create_policy(", max_attempts => 2, retry_delay => '100 ms', batch_size => 50");
        shop.client
            .batch_execute(
                "CREATE ROLE monitor LOGIN IN ROLE pg_monitor; SELECT expiry.subscribe('refunds', 'orders', 0)",
            )
            .unwrap();
        let folder = temporary_directory().join(format!("pg_expiry_monitoring_{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let [postgres_port, sql_port, port] = [free_port(), free_port(), free_port()];
        let (socket, database) = (shop.db.endpoint.host().display().to_string(), shop.db.name.clone());

        fs::write(folder.join("postgres_exporter.yml"), contrib("postgres_exporter.yml")).unwrap();
        let mut postgres_exporter = Command::new(program("prometheus-postgres-exporter"));
        postgres_exporter
            .env(
                "DATA_SOURCE_NAME",
                format!(
                    "host={socket} port={} user=monitor dbname={database} sslmode=disable",
                    Endpoint::PORT
                ),
            )
            .args(["--disable-default-metrics", "--disable-settings-metrics"])
            .arg(format!("--extend.query-path={}", folder.join("postgres_exporter.yml").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{postgres_port}"));

        let connection =
            format!("postgres://monitor@/{database}?host={socket}&port={}&sslmode=disable", Endpoint::PORT);
        let config = contrib("sql_exporter.yml")
            .replace("postgres://monitor@/shop?host=/var/run/postgresql&sslmode=disable", &connection)
            .replace("interval: 15s", "interval: 1s");
        assert!(config.contains(&connection) && config.contains("interval: 1s"));
        fs::write(folder.join("sql_exporter.yml"), config).unwrap();
        let mut sql_exporter = Command::new(program("prometheus-sql-exporter"));
        sql_exporter
            .arg(format!("-config.file={}", folder.join("sql_exporter.yml").display()))
            .arg(format!("-web.listen-address=127.0.0.1:{sql_port}"));

        fs::write(folder.join("alerts.yml"), hurried(&contrib("alerts.yml"))).unwrap();
        let config = contrib("prometheus.yml")
            .replace("localhost:9187", &format!("127.0.0.1:{postgres_port}"))
            .replace("localhost:9237", &format!("127.0.0.1:{sql_port}"));
        let global = "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\n";
        fs::write(folder.join("prometheus.yml"), format!("{global}{config}")).unwrap();
        let mut prometheus = Command::new(program("prometheus"));
        prometheus
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));

        let running = [
            Running::start(postgres_exporter, &folder.join("postgres_exporter.log")),
            Running::start(sql_exporter, &folder.join("sql_exporter.log")),
            Running::start(prometheus, &folder.join("prometheus.log")),
        ];
        Watch { shop, port, folder, _running: running, _cluster: cluster }
    }

    /// What Prometheus answers; an error while it does not.
    fn get(&self, path: &str) -> Result<Value, String> {
        let told = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(told)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(told)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(told)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
        let answer: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))?;
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(answer.to_string()) }
    }

    /// The result of an instant query: its series.
    fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let encoded: String = expression
            .bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
        let data = self.get(&format!("/api/v1/query?query={encoded}"))?;
        data["result"].as_array().cloned().ok_or_else(|| data.to_string())
    }

    /// Names of our metrics that this job has scraped.
    fn metrics(&self, job: &str) -> Result<BTreeSet<String>, String> {
        let series = self.query(&format!("{{__name__=~\"expiry_.*\", job=\"{job}\"}}"))?;
        Ok(series.iter().map(|one| one["metric"]["__name__"].as_str().unwrap().to_owned()).collect())
    }

    /// The alerts that fire, each with the jobs whose series it is about.
    fn firing(&self) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
        let data = self.get("/api/v1/alerts")?;
        let mut firing = BTreeMap::<String, BTreeSet<String>>::new();
        for alert in data["alerts"].as_array().ok_or("no alerts")? {
            if alert["state"] == "firing" {
                let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
                firing.entry(label("alertname")).or_default().insert(label("job"));
            }
        }
        Ok(firing)
    }

    /// Waits until each of these fires, on what both exporters say where it tells them apart.
    #[track_caller]
    fn wait_for_alerts(&mut self, alerts: &[&str]) {
        wait_until(format_args!("{alerts:?} to fire"), PATIENCE, || {
            let firing = self.firing()?;
            let fires =
                |alert: &&str| firing.get(*alert).is_some_and(|jobs| jobs.len() == 2 || jobs.contains(""));
            if alerts.iter().all(fires) { Ok(()) } else { Err(format!("{firing:?}")) }
        });
    }

    #[track_caller]
    fn wait_for_all_clear(&mut self) {
        wait_until("no alert to fire", PATIENCE, || {
            let firing = self.firing()?;
            if firing.is_empty() { Ok(()) } else { Err(format!("{firing:?}")) }
        });
    }
}

/// The rules with all waits and windows short; thresholds as they are.
fn hurried(rules: &str) -> String {
    let mut hurried = String::new();
    for line in rules.lines() {
        let line = match line.split_once("for: ") {
            Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 0s"),
            _ => line.replace("[15m]", &format!("[{WINDOW}]")).replace("[5m]", &format!("[{WINDOW}]")),
        };
        hurried += &line;
        hurried.push('\n');
    }
    hurried
}

/// What the custom queries lead to: names and their kind.
fn promised() -> BTreeMap<String, String> {
    let (mut promised, mut query, mut column) = (BTreeMap::new(), String::new(), String::new());
    for line in contrib("postgres_exporter.yml").lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with([' ', '#'])) {
            name.clone_into(&mut query);
        } else if let Some(name) = line.trim().strip_prefix("- ").and_then(|name| name.strip_suffix(':')) {
            name.clone_into(&mut column);
        } else if let Some(usage) = line.trim().strip_prefix("usage: ")
            && usage != "\"LABEL\""
        {
            promised.insert(format!("{query}_{column}"), usage.trim_matches('"').to_owned());
        }
    }
    promised
}

/// Words in a text that are names of our metrics.
fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("expiry_")).map(str::to_owned).collect()
}

fn queries_of(text: &str) -> Vec<String> {
    let mut queries = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "query: |" {
            let indent = lines.peek().map_or(0, |line| line.len() - line.trim_start().len());
            let mut query = String::new();
            while let Some(line) =
                lines.next_if(|line| line.len() - line.trim_start().len() >= indent && !line.is_empty())
            {
                query += line[indent..].trim_end();
                query.push('\n');
            }
            queries.push(query);
        }
    }
    queries
}

#[test]
fn files_agree_with_each_other() {
    let (postgres, sql) = (contrib("postgres_exporter.yml"), contrib("sql_exporter.yml"));
    assert_eq!(queries_of(&postgres).len(), 3);
    assert_eq!(queries_of(&postgres), queries_of(&sql));
    let promised: BTreeSet<String> = promised().into_keys().collect();
    assert!(promised.len() > 20);
    for file in ["alerts.yml", "grafana.json"] {
        let named = named_in(&contrib(file));
        let unknown: Vec<_> = named.difference(&promised).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let checks = [
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts_test.yml"],
    ];
    for check in checks {
        let folder = repository::root().join("contrib/monitoring");
        let checked =
            Command::new(program("promtool")).args(check).current_dir(folder).output().expect("promtool");
        assert!(checked.status.success(), "{check:?}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    let readme = contrib("README.md");
    for line in contrib("alerts.yml").lines() {
        if let Some(alert) = line.trim().strip_prefix("- alert: ") {
            assert!(readme.contains(&format!("`{alert}`")), "{alert} is not explained");
        }
    }
}

#[test]
fn everything_is_scraped_and_every_alert_fires_and_clears() {
    let mut watch = Watch::new();
    watch.shop.fill(1..=100, "now()");
    watch.shop.wait_for_cancelled(100);
    watch.shop.fill(101..=110, "now() + interval '1 day'");
    let promised = promised();
    let names: BTreeSet<String> = promised.keys().cloned().collect();
    for job in ["pg_expiry", "pg_expiry_sql"] {
        wait_until(format_args!("all metrics of {job}"), PATIENCE, || {
            let seen = watch.metrics(job)?;
            if seen == names { Ok(()) } else { Err(format!("{:?}", seen.symmetric_difference(&names))) }
        });
        wait_until(format_args!("the values of {job}"), PATIENCE, || {
            let wanted = [
                ("expiry_policy_cancelled_total", "100"),
                ("expiry_policy_active", "1"),
                ("expiry_policy_tripped", "0"),
                ("expiry_policy_backlog", "0"),
                ("expiry_worker_running", "1"),
                ("expiry_consumer_lag", "100"),
            ];
            for (metric, value) in wanted {
                let series = watch.query(&format!("{metric}{{job=\"{job}\"}}"))?;
                if series.len() != 1 || series[0]["value"][1] != value {
                    return Err(format!("{metric}: {series:?}"));
                }
            }
            Ok(())
        });
    }
    let types = watch.get("/api/v1/metadata").unwrap();
    for (name, usage) in &promised {
        assert_eq!(types[name][0]["type"], usage.to_lowercase().as_str(), "{name}");
    }

    // What the dashboard asks, has an answer.
    let dashboard: Value = serde_json::from_str(&contrib("grafana.json")).expect("JSON");
    let mut expressions = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let asked = expression
                .replace("$__rate_interval", WINDOW)
                .replace("$datname", ".*")
                .replace("$policy", ".*");
            wait_until(format_args!("an answer to {expression}"), PATIENCE, || {
                let series = watch.query(&asked)?;
                if series.is_empty() { Err("nothing".to_owned()) } else { Ok(()) }
            });
            expressions += 1;
        }
    }
    assert!(expressions > 20);
    watch.wait_for_all_clear();

    let mut fired = BTreeSet::new();
    let mut fires = |watch: &mut Watch, alerts: &[&'static str]| {
        watch.wait_for_alerts(alerts);
        fired.extend(alerts.iter().copied());
    };
    let body: String = watch.shop.value("SELECT pg_get_functiondef('cancel_order(bigint)'::regprocedure)");

    // A row that fails, an hour after its deadline, until it is quarantined.
    watch.shop.replace_cancel_order("RAISE 'no'");
    watch.shop.fill(201..=201, "now() - interval '1 hour'");
    fires(&mut watch, &["PgExpiryLagging", "PgExpiryOverdue", "PgExpiryQuarantineGrows", "PgExpiryFailing"]);
    watch.shop.client.batch_execute(&body).unwrap();
    watch.shop.client.batch_execute("SELECT expiry.retry('orders')").unwrap();
    watch.wait_for_all_clear();

    // Every row fails.
    watch.shop.replace_cancel_order("RAISE 'never'");
    watch.shop.fill(301..=340, "now()");
    fires(&mut watch, &["PgExpiryTripped"]);
    watch.shop.client.batch_execute(&body).unwrap();
    watch.shop.client.batch_execute("SELECT expiry.retry('orders')").unwrap();
    watch.wait_for_all_clear();

    watch.shop.client.batch_execute("DROP FUNCTION cancel_order(bigint)").unwrap();
    fires(&mut watch, &["PgExpiryStopped"]);
    watch.shop.client.batch_execute(&body).unwrap();
    watch.wait_for_all_clear();

    // A dump does not carry this table, which is how a restored policy is known.
    watch.shop.client.batch_execute("DELETE FROM expiry.binding").unwrap();
    fires(&mut watch, &["PgExpiryRestored"]);
    watch.shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();
    watch.wait_for_all_clear();

    watch.shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    fires(&mut watch, &["PgExpiryWorkerMissing"]);
    watch.shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    watch.wait_for_all_clear();

    // A listener sits in a transaction.
    let mut stuck = watch.shop.db.connect();
    stuck.batch_execute("LISTEN order_expired").unwrap();
    stuck.batch_execute("BEGIN; SELECT 1").unwrap();
    watch.shop.fill(1001..=4000, "now() + (id - 1000) * interval '3 ms'");
    fires(&mut watch, &["PgExpiryNotificationsWithheld"]);
    drop(stuck);
    watch.wait_for_all_clear();

    let rules = contrib("alerts.yml");
    let all: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(fired, all);
    wait_for_state(&mut watch.shop, "active", "");
    watch.shop.settle();
    wait_until("the books to balance", 10 * SECOND, || {
        watch.shop.value::<i64>("SELECT count(*) FROM expiry.failure") == 0
    });
    watch.shop.assert_invariant();
}
