//! Connections, and a database for each test.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use postgres::error::DbError;
use postgres::{Client, Config, NoTls};

use crate::run::{keep_run_folder, locked, next_number};
use crate::{Listener, shared_cluster};

/// Where a server listens. Stays the same over the server's restarts.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub(crate) socket_folder: PathBuf,
}

/// What the server said besides results (NOTICE, WARNING), oldest first.
#[derive(Debug, Clone, Default)]
pub struct Notices(Arc<Mutex<Vec<DbError>>>);

impl Endpoint {
    pub const PORT: u16 = 5432;
    pub const SUPERUSER: &str = "postgres";

    /// The folder of the unix socket, which is libpq's `host`.
    pub fn host(&self) -> &Path {
        &self.socket_folder
    }

    /// To be refined and connected by the caller. No statement of a test takes over a minute.
    pub fn config(&self, database: &str, user: &str) -> Config {
        let mut config = Config::new();
        config.host_path(&self.socket_folder).port(Self::PORT).dbname(database).user(user);
        config.application_name(thread::current().name().unwrap_or("test"));
        config.connect_timeout(Duration::from_secs(10));
        config.options("-c statement_timeout=60s");
        config
    }

    pub fn connect(&self, database: &str) -> Client {
        self.connect_as(database, Self::SUPERUSER)
    }

    pub fn connect_as(&self, database: &str, user: &str) -> Client {
        self.try_connect(database, user).unwrap_or_else(|error| panic!("{error:?}"))
    }

    pub fn try_connect(&self, database: &str, user: &str) -> Result<Client, postgres::Error> {
        self.config(database, user).connect(NoTls)
    }
}

impl Notices {
    /// Those of this severity ("NOTICE", "WARNING") since the last call.
    pub fn take(&self, severity: &str) -> Vec<DbError> {
        locked(&self.0).extract_if(.., |notice| notice.severity() == severity).collect()
    }
}

/// A database of a test's own. Dropped with its sessions afterwards, so that no worker keeps a
/// process slot of the server; left alone when the test failed.
pub struct Db {
    pub name: String,
    pub endpoint: Endpoint,
}

impl Db {
    /// An empty database on the shared server.
    pub fn new() -> Db {
        shared_cluster().create_database()
    }

    /// A database on the shared server, with the extension.
    pub fn with_extension() -> Db {
        let db = Db::new();
        db.create_extension();
        db
    }

    /// An empty database, named after the running test.
    pub fn on(endpoint: &Endpoint) -> Db {
        let test: String = thread::current().name().unwrap_or("test").replace("::", "_");
        let test = test.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_');
        let name = format!("{}_{}", test.take(50).collect::<String>(), next_number());
        let mut client = endpoint.connect("postgres");
        client.batch_execute(&format!("CREATE DATABASE {name}")).expect("CREATE DATABASE");
        Db { name, endpoint: endpoint.clone() }
    }

    pub fn create_extension(&self) {
        self.connect().batch_execute("CREATE EXTENSION pg_expiry").expect("CREATE EXTENSION");
    }

    pub fn connect(&self) -> Client {
        self.endpoint.connect(&self.name)
    }

    pub fn connect_as(&self, user: &str) -> Client {
        self.endpoint.connect_as(&self.name, user)
    }

    /// A connection, and what the server will say to it besides results.
    pub fn connect_with_notices(&self, user: &str) -> (Client, Notices) {
        let notices = Notices::default();
        let sink = notices.clone();
        let mut config = self.endpoint.config(&self.name, user);
        config.notice_callback(move |notice| locked(&sink.0).push(notice));
        let client = config.connect(NoTls).unwrap_or_else(|error| panic!("{error:?}"));
        (client, notices)
    }

    pub fn listen(&self, channel: &str) -> Listener {
        Listener::new(&self.endpoint, &self.name, channel)
    }
}

impl Default for Db {
    fn default() -> Db {
        Db::new()
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if thread::panicking() {
            keep_run_folder();
            let log = self.endpoint.socket_folder.with_file_name("log");
            eprintln!("the server's log: {} (database {})", log.display(), self.name);
            return;
        }
        // The test may have dropped or renamed it, or stopped the server: then there is nothing to do.
        if let Ok(mut client) = self.endpoint.try_connect("postgres", Endpoint::SUPERUSER) {
            let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
            let _ = client.batch_execute(&sql);
        }
    }
}
