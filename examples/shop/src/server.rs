//! The demo's private server, and how to visit it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{
    Cluster, Endpoint, Installation, Signal, signal, temporary_directory, wait_until, worker_pids,
};

/// A server that goes with us, or one that stays, in a folder where the next demo finds it.
pub fn start(keep: bool) -> Cluster {
    if !keep {
        return Cluster::start();
    }
    let uid = fs::metadata("/proc/self").expect("/proc").uid();
    let folder = temporary_directory().join(format!("pg_expiry_demo_{uid}"));
    stop_the_last_one(&folder);
    Cluster::builder().outlives_us(&folder).start()
}

fn stop_the_last_one(folder: &Path) {
    let data = folder.join("data");
    let pid = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let pid: Option<i32> = pid.lines().next().and_then(|pid| pid.parse().ok());
    let is_running = |pid: i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data);
    if let Some(pid) = pid.filter(|pid| is_running(*pid)) {
        println!("Stopping the server of an earlier demo, pid {pid}.");
        signal(pid, Signal::INT);
        wait_until("it to stop", Duration::from_secs(30), || !is_running(pid));
    }
    if folder.exists() {
        fs::remove_dir_all(folder).expect("the folder of an earlier demo");
    }
}

/// The shop opens when somebody is there to cancel.
pub fn wait_for_worker(client: &mut Client) {
    wait_until("the worker of the database to start", Duration::from_secs(10), || {
        !worker_pids(client).is_empty()
    });
}

pub fn say_goodbye(cluster: &Cluster, keep: bool) {
    if !keep {
        println!("\n`make demo KEEP=1` leaves the server on, to look around.");
        return;
    }
    let psql = Installation::get().program("psql");
    let (host, port, user) = (cluster.endpoint().host(), Endpoint::PORT, Endpoint::SUPERUSER);
    println!("\nThe server is left on. Connect with");
    println!("    {} -h {} -p {port} -U {user} shop", psql.display(), host.display());
    println!("and stop it with");
    println!("    kill -INT {}", cluster.pid());
}
