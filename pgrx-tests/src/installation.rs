//! The server tree that was built for the tests, and how its programs are started.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rustix::process::geteuid;

/// Whom root lends its servers to: PostgreSQL refuses to run as root.
const SERVER_USER: &str = "pgexpiry";

/// The private PostgreSQL with pg_expiry in it, `PG_EXPIRY_SERVER` or `target/pg/15/test`.
pub struct Installation {
    bin: PathBuf,
    /// uid and gid to run as, when we are root.
    server_user: Option<(u32, u32)>,
}

static INSTALLATION: LazyLock<Installation> = LazyLock::new(|| {
    let tree = env::var_os("PG_EXPIRY_SERVER").map(PathBuf::from);
    Installation::in_tree(
        &tree.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pg/15/test")),
    )
});

static OLD_INSTALLATION: LazyLock<Installation> = LazyLock::new(|| {
    let tree = env::var_os("PG_EXPIRY_OLD_SERVER").expect("PG_EXPIRY_OLD_SERVER, as `make test` sets it");
    Installation::in_tree(Path::new(&tree))
});

impl Installation {
    pub fn get() -> &'static Installation {
        &INSTALLATION
    }

    /// One of an older major version, `PG_EXPIRY_OLD_SERVER`; panics when there is none.
    pub fn old() -> &'static Installation {
        &OLD_INSTALLATION
    }

    fn in_tree(tree: &Path) -> Installation {
        // The real path counts: from it the server finds its library and share folders.
        let bin = fs::canonicalize(tree.join("bin")).unwrap_or_else(|error| {
            panic!("no server in {}: {error}; `make test` builds it", tree.display())
        });
        Installation { bin, server_user: geteuid().is_root().then(look_up_server_user) }
    }

    /// The folder of its programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The path of a program of the server, say psql.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Where the scripts of extensions are: ours are files of this tree alone.
    pub fn extension_folder(&self) -> PathBuf {
        let mut pg_config = self.command(self.program("pg_config"), true);
        let output = pg_config.arg("--sharedir").output().expect("pg_config");
        Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("extension")
    }

    /// A command that runs as the servers do: as their user, with an environment of its own,
    /// which above all has no RUST_BACKTRACE (each caught PostgreSQL error would cost a trace).
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, die_with_us: bool) -> Command {
        let mut command = Command::new("setpriv");
        if let Some((uid, gid)) = self.server_user {
            command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
            command.arg("--clear-groups");
        }
        if die_with_us {
            command.arg("--pdeathsig=QUIT");
        }
        command.arg("--").arg(program);
        command.env_clear().env("LC_ALL", "C").current_dir("/");
        command.env("PATH", env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Gives a file or folder of ours to the user that the servers run as.
    pub(crate) fn hand_over(&self, path: &Path) {
        if let Some((uid, gid)) = self.server_user {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown");
        }
    }
}

fn look_up_server_user() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let user = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = user.into_iter().find(|fields| fields[0] == SERVER_USER);
    let user = user.unwrap_or_else(|| panic!("no user {SERVER_USER}; `make test` creates it"));
    (user[2].parse().expect("uid"), user[3].parse().expect("gid"))
}
