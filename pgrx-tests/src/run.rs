//! The folder of this test run: servers' data, sockets and logs; gone afterwards, however the
//! run ends. When a test failed it stays until the next run.
//!
//! A static's destructor never runs and a killed process cleans nothing up. So a shell waits at
//! the other end of a pipe: when our end closes, for whatever reason, it removes the folder.

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::Installation;

const UNDERTAKER: &str = r#"
trap '' INT TERM HUP
read -r order && exit
tries=0
while ls "$0"/*/data/postmaster.pid && [ $tries -lt 200 ]; do
  tries=$((tries + 1)); sleep 0.05
done
rm -rf "$0"
"#;

struct Run {
    folder: PathBuf,
    undertaker: Mutex<Child>,
}

static RUN: LazyLock<Run> = LazyLock::new(|| {
    remove_folders_of_past_runs();
    let folder = temporary_directory().join(format!("pg_expiry_{}", id()));
    fs::DirBuilder::new().mode(0o700).create(&folder).expect("the run folder");
    Installation::get().hand_over(&folder);
    let undertaker = Command::new("sh")
        .args(["-c", UNDERTAKER])
        .arg(&folder)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh");
    Run { folder, undertaker: Mutex::new(undertaker) }
});

/// $TMPDIR or /tmp, unless the servers' user cannot enter it or its name is too long for a socket.
pub fn temporary_directory() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let can_be_entered = |path: &PathBuf| {
            let status = Installation::get().command("test", false).arg("-x").arg(path).status();
            status.expect("setpriv test").success()
        };
        let usual = env::temp_dir();
        let fits = usual.as_os_str().len() < 64 && can_be_entered(&usual);
        if fits { usual } else { "/var/tmp".into() }
    });
    &DIRECTORY
}

fn remove_folders_of_past_runs() {
    for entry in fs::read_dir(temporary_directory()).expect("the temporary directory").flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("pg_expiry_")?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // Another user's, or being removed by its undertaker: not ours to worry about.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The folder of this run.
pub(crate) fn run_folder() -> &'static Path {
    &RUN.folder
}

/// A path for a file or folder that a program of the server is to write; goes with the run's folder.
pub fn scratch_path(name: &str) -> PathBuf {
    run_folder().join(format!("{name}-{}", next_number()))
}

/// A folder that the servers' user may write into; goes with the run's folder.
pub fn scratch_folder(name: &str) -> PathBuf {
    let folder = scratch_path(name);
    fs::create_dir(&folder).expect("a scratch folder");
    Installation::get().hand_over(&folder);
    folder
}

/// A number that no other server or database of this run has.
pub(crate) fn next_number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Leaves the folder to be looked at: a test failed.
pub(crate) fn keep_run_folder() {
    static KEPT: Mutex<bool> = Mutex::new(false);
    let mut kept = locked(&KEPT);
    if !*kept {
        if let Some(orders) = &mut locked(&RUN.undertaker).stdin {
            // When the undertaker is dead already the folder stays as well.
            let _ = orders.write_all(b"keep\n");
        }
        *kept = true;
    }
}

/// A panic elsewhere is no reason for another one here.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
