//! A private server: its data folder, its postmaster, its settings, its ways to die.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use postgres::Client;
use rustix::process::Signal;

use crate::run::{keep_run_folder, locked, next_number, run_folder};
use crate::{Db, Endpoint, Installation, signal, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// How a server is told to stop, as in `pg_ctl stop -m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Smart,
    Fast,
    Immediate,
}

/// A server of its own. Stopped and removed when dropped; killed when the test process dies.
pub struct Cluster {
    installation: &'static Installation,
    folder: PathBuf,
    endpoint: Endpoint,
    outlives_us: bool,
    postmaster: Mutex<Option<Child>>,
}

/// What is different in a server; `Cluster::builder()`.
pub struct ClusterBuilder {
    installation: &'static Installation,
    has_own_identity: bool,
    preload: bool,
    folder: Option<PathBuf>,
    settings: Vec<(String, String)>,
}

/// The server that most tests share, each in its own [`Db`]. Ends with the process.
pub fn shared_cluster() -> &'static Cluster {
    static SHARED: LazyLock<Cluster> = LazyLock::new(|| {
        let many = Cluster::builder().setting("max_worker_processes", "64");
        many.setting("pg_expiry.max_workers", "48").start()
    });
    &SHARED
}

impl ClusterBuilder {
    /// Whether the library is in `shared_preload_libraries`; it is by default.
    pub fn preload(mut self, preload: bool) -> Self {
        self.preload = preload;
        self
    }

    /// Programs and libraries of another version than the tests'.
    pub fn installation(mut self, installation: &'static Installation) -> Self {
        self.installation = installation;
        self
    }

    /// With a system identifier that no other server has; by default they share one, being copies.
    pub fn own_identity(mut self) -> Self {
        self.has_own_identity = true;
        self
    }

    /// A line of postgresql.conf.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// In this folder instead of the run's, and left running when the process ends.
    pub fn outlives_us(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.into());
        self
    }

    pub fn start(self) -> Cluster {
        let cluster = self.stopped();
        cluster.start_again();
        cluster
    }

    /// Fresh, and not started yet.
    pub fn stopped(self) -> Cluster {
        let cluster = Cluster::in_folder(self.installation, self.folder.as_deref());
        if self.has_own_identity {
            initdb(self.installation, &cluster.data());
        } else {
            let mut copy = self.installation.command("cp", false);
            run(copy.arg("-R").arg(template(self.installation)).arg(cluster.data()));
        }
        cluster.configure(&self);
        cluster
    }
}

impl Cluster {
    /// A server with the extension preloaded.
    pub fn start() -> Cluster {
        Cluster::builder().start()
    }

    pub fn builder() -> ClusterBuilder {
        let installation = Installation::get();
        ClusterBuilder {
            installation,
            has_own_identity: false,
            preload: true,
            folder: None,
            settings: Vec::new(),
        }
    }

    /// Without data yet. In the run's folder, unless another is given, which then outlives us.
    fn in_folder(installation: &'static Installation, folder: Option<&Path>) -> Cluster {
        let outlives_us = folder.is_some();
        let folder = folder.map_or_else(|| run_folder().join(next_number().to_string()), Path::to_owned);
        let socket_folder = folder.join("s");
        let socket = socket_folder.join(format!(".s.PGSQL.{}", Endpoint::PORT));
        assert!(socket.as_os_str().len() < 107, "too long for a socket: {}", socket.display());
        for new in [&folder, &socket_folder] {
            fs::DirBuilder::new()
                .mode(0o700)
                .create(new)
                .unwrap_or_else(|error| panic!("{}: {error}", new.display()));
            installation.hand_over(new);
        }
        let endpoint = Endpoint { socket_folder };
        Cluster { installation, folder, endpoint, outlives_us, postmaster: Mutex::new(None) }
    }

    /// A hot standby of this server, with the same settings; streams from it.
    pub fn standby(&self) -> Cluster {
        let standby = self.base_backup(&["--write-recovery-conf"], &[]);
        standby.start_again();
        standby
    }

    /// What pg_basebackup makes of this server, with some other settings; not started yet.
    pub fn base_backup(&self, options: &[&str], settings: &[(&str, &str)]) -> Cluster {
        let copy = Cluster::in_folder(self.installation, None);
        let mut backup = self.program("pg_basebackup");
        run(backup.args(options).args(["--checkpoint=fast", "--no-sync", "-D"]).arg(copy.data()));
        let socket_folder = copy.endpoint.host().display().to_string();
        copy.add_to_configuration(&[("unix_socket_directories", &socket_folder)]);
        copy.add_to_configuration(settings);
        copy
    }

    fn configure(&self, different: &ClusterBuilder) {
        let socket_folder = self.endpoint.host().display().to_string();
        let preload = if different.preload { "pg_expiry" } else { "" };
        let settings = [
            ("listen_addresses", ""),
            ("unix_socket_directories", &socket_folder),
            ("shared_preload_libraries", preload),
            ("log_line_prefix", "%m [%p] %b %d "),
            ("shared_buffers", "32MB"),
            ("max_connections", "100"),
            ("fsync", "off"),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
        ];
        self.add_to_configuration(&settings);
        let different = different.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        self.add_to_configuration(&different.collect::<Vec<_>>());
    }

    /// The last line for a setting is the one that counts.
    fn add_to_configuration(&self, settings: &[(&str, &str)]) {
        let conf = self.data().join("postgresql.conf");
        let mut conf = OpenOptions::new().append(true).open(conf).expect("postgresql.conf");
        for (name, value) in settings {
            writeln!(conf, "{name} = '{}'", value.replace('\'', "''")).expect("postgresql.conf");
        }
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// All that the server has logged, over its restarts; each line with pid and backend type.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).expect("the log")).into_owned()
    }

    pub fn connect(&self, database: &str) -> Client {
        self.endpoint.connect(database)
    }

    pub fn connect_as(&self, database: &str, user: &str) -> Client {
        self.endpoint.connect_as(database, user)
    }

    /// A database with a name of its own.
    pub fn create_database(&self) -> Db {
        Db::on(&self.endpoint)
    }

    /// A program of the server (pg_dump, pg_basebackup, psql) that talks to this server.
    pub fn program(&self, name: &str) -> Command {
        let mut command = self.installation.command(self.installation.program(name), true);
        command.env("PGHOST", self.endpoint.host()).env("PGPORT", Endpoint::PORT.to_string());
        command.env("PGUSER", Endpoint::SUPERUSER);
        command
    }

    /// Whether this version of the server has that program.
    pub fn has_program(&self, name: &str) -> bool {
        self.installation.program(name).exists()
    }

    /// The pid of the postmaster; panics when the server is not running.
    pub fn pid(&self) -> i32 {
        let postmaster = locked(&self.postmaster);
        postmaster.as_ref().expect("the server is running").id().cast_signed()
    }

    /// All processes of this server, from /proc: the postmaster and what it started.
    pub fn processes(&self) -> Vec<i32> {
        let data = self.data();
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data);
        pids.filter(is_ours).collect()
    }

    /// Starts a stopped or killed server and waits until it takes connections.
    pub fn start_again(&self) {
        let mut postmaster = locked(&self.postmaster);
        assert!(postmaster.is_none(), "the server is running");
        let installation = self.installation;
        let log = OpenOptions::new().append(true).create(true).open(self.log_path()).expect("the log");
        let mut command = installation.command(installation.program("postgres"), !self.outlives_us);
        command.arg("-D").arg(self.data());
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("the log")).stdout(log);
        let mut child = spawn_for_good(command);
        wait_until("the server to take connections", PATIENCE, || {
            if let Some(status) = child.try_wait().expect("the postmaster") {
                panic!("the server did not start ({status}):\n{}", self.log());
            }
            self.endpoint.try_connect("postgres", Endpoint::SUPERUSER)
        });
        *postmaster = Some(child);
    }

    /// Stops it and waits until it has stopped.
    pub fn stop(&self, mode: Mode) {
        self.end(match mode {
            Mode::Smart => Signal::TERM,
            Mode::Fast => Signal::INT,
            Mode::Immediate => Signal::QUIT,
        });
    }

    /// As if the power failed, for the postmaster; returns when its orphans are gone too.
    pub fn kill9_postmaster(&self) {
        self.end(Signal::KILL);
    }

    fn end(&self, how: Signal) {
        let Some(mut child) = locked(&self.postmaster).take() else {
            return;
        };
        signal(child.id().cast_signed(), how);
        wait_until(format_args!("the server to end by {how:?}"), PATIENCE, || {
            child.try_wait().expect("the postmaster")
        });
        wait_until("the server's processes to end", PATIENCE, || {
            let left = self.processes();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }

    /// Has the configuration read again and waits until new sessions see it.
    pub fn reload(&self) {
        let loaded_at = || -> std::time::SystemTime {
            let row = self.connect("postgres").query_one("SELECT pg_conf_load_time()", &[]);
            row.expect("pg_conf_load_time").get(0)
        };
        let before = loaded_at();
        signal(self.pid(), Signal::HUP);
        wait_until("the configuration to be reloaded", PATIENCE, || loaded_at() > before);
    }

    /// ALTER SYSTEM SET, and [`reload`](Cluster::reload).
    pub fn set(&self, name: &str, value: &str) {
        let sql = format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''"));
        self.connect("postgres").batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        self.reload();
    }

    /// ALTER SYSTEM RESET, and [`reload`](Cluster::reload).
    pub fn reset(&self, name: &str) {
        let sql = format!("ALTER SYSTEM RESET {name}");
        self.connect("postgres").batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        self.reload();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.outlives_us {
            return;
        }
        if thread::panicking() {
            keep_run_folder();
            eprintln!("the server's log: {}", self.log_path().display());
            // No waiting that could panic again; the run's end takes care of the rest.
            if let Some(child) = locked(&self.postmaster).as_mut() {
                let _ = child.kill();
                let _ = child.wait();
            }
            return;
        }
        self.stop(Mode::Immediate);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A data folder fresh from initdb, to be copied: initdb takes longer than the copy.
fn template(installation: &'static Installation) -> PathBuf {
    static TEMPLATES: Mutex<BTreeMap<&Path, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut templates = locked(&TEMPLATES);
    let number = templates.len();
    let template = templates.entry(installation.bin()).or_insert_with(|| {
        let folder = run_folder().join(format!("template{number}"));
        initdb(installation, &folder);
        folder
    });
    template.clone()
}

fn initdb(installation: &Installation, folder: &Path) {
    let mut initdb = installation.command(installation.program("initdb"), true);
    initdb.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    run(initdb.args(["-U", Endpoint::SUPERUSER, "-D"]).arg(folder));
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("a program of the server");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
}

/// Spawns from a thread that lives as long as the process. The kernel takes the death of the
/// *thread* that started a child for its parent's death, and a test's thread ends with the test.
fn spawn_for_good(command: Command) -> Child {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let (reply, child) = channel();
    SPAWNER.send((command, reply)).expect("the spawner");
    child.recv().expect("the spawner").expect("setpriv postgres")
}
