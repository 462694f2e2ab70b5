//! What keeps workers from a policy, and whose locks are in the way: processes, seen from outside.

use pgrx::pg_sys::{self, Oid};

use crate::board;
use crate::pg::clock::{self, Timestamp};
use crate::pg::guc::with_settings;
use crate::pg::row_lock::Holder;
use crate::pg::spi;
use crate::pg::{bgworker, catalog, database, shmem, wake};
use crate::rules::names::is_listed;
use crate::rules::spell::duration;
use crate::settings;

const PINNED: [(&str, &str); 1] = [("search_path", "pg_catalog, pg_temp")];

/// Why no worker runs for this owner; or the one that does.
pub fn worker_of(owner: Oid) -> Result<i32, String> {
    if catalog::is_in_recovery() {
        return Err("this server is a standby, where nothing is cancelled".into());
    }
    if !shmem::is_available() {
        return Err("pg_expiry is not in shared_preload_libraries, so there are no workers: \
                    CALL expiry.run() does by hand what they would do"
            .into());
    }
    let here = wake::own_database();
    if board::is_stopped(here) {
        return Err("expiry.stop_workers() has stopped the workers of this database: \
                    SELECT expiry.start_workers() lets them in again"
            .into());
    }
    let name = database::name(here).unwrap_or_default();
    if !is_listed(&settings::databases(), &name) {
        return Err(format!("pg_expiry.databases does not list database \"{name}\""));
    }
    let role = database::role_name(owner).unwrap_or_default();
    let workers = board::overview();
    let running = workers.iter().filter(|worker| worker.pid.is_some()).count();
    let ours = workers.iter().find(|worker| worker.database == here && worker.owner == owner);
    Err(match ours.map(|worker| (worker.state, worker.pid)) {
        Some(("running", Some(pid))) => return Ok(pid),
        Some(("no slot", _)) => format!(
            "no worker of role \"{role}\" runs: all background worker slots of the server are in use, \
             max_worker_processes is too small"
        ),
        Some(("waiting", _)) if running >= settings::max_workers() => format!(
            "the worker of role \"{role}\" waits for its turn: pg_expiry.max_workers is {}",
            settings::max_workers()
        ),
        Some((state, _)) => format!(
            "the worker of role \"{role}\" does not run at the moment, it is {state}: see expiry.workers and the server's log"
        ),
        None => format!("no worker of role \"{role}\" has been started yet: see expiry.workers"),
    })
}

/// What a worker does, if it has been at one transaction for longer than a batch should take.
pub fn busy(worker: i32) -> Option<String> {
    const LONG_US: i64 = 1_000_000;
    const WORKER: &str = "SELECT xact_start, pg_blocking_pids(pid) FROM pg_stat_activity WHERE pid = $1";
    let seen = catalog::read(WORKER, &[(pg_sys::INT4OID, Some(worker.into()))], |row, n| {
        (row.get(n, 0).map(Timestamp), row.get::<Vec<i32>>(n, 1).unwrap_or_default())
    });
    let (since, blockers) = seen.into_iter().next()?;
    let took_us = clock::now().since(since?);
    let mut text = format!("has been at one batch for {}", duration(took_us));
    if let [blocker, ..] = blockers[..] {
        text += &format!(" and waits for a lock of {}", described(blocker));
    }
    (took_us > LONG_US).then_some(text)
}

/// Who holds the row, in words; `None`: nobody.
pub fn who(holders: &[Holder], worker: Option<i32>) -> Option<String> {
    let mut named: Vec<String> = holders
        .iter()
        .map(|holder| match *holder {
            Holder::Ourselves => "this very transaction".into(),
            Holder::Process(pid) if Some(pid) == worker => {
                let busy = busy(pid).map_or(String::new(), |busy| format!(", which {busy}"));
                format!("its worker (pid {pid}), which is cancelling it{busy}")
            }
            Holder::Process(pid) => described(pid),
            Holder::Transaction(id) => prepared(id),
        })
        .collect();
    named.dedup();
    (!named.is_empty()).then(|| named.join(" and "))
}

/// Who keeps others from using the relation.
pub fn who_locks(relation: Oid) -> String {
    const HOLDER: &str = "\
        SELECT pid FROM pg_locks WHERE locktype = 'relation' AND relation = $1 AND granted AND pid IS NOT NULL
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND mode = 'AccessExclusiveLock' LIMIT 1";
    let holder = catalog::read(HOLDER, &[(pg_sys::OIDOID, Some(relation.into()))], |row, n| row.expect(n, 0));
    holder.first().map_or_else(|| "another transaction".into(), |pid| described(*pid))
}

/// `pid 42 (UPDATE orders ..., since 5 min)`, as much of it as the caller may see.
fn described(pid: i32) -> String {
    const SESSION: &str = "\
        SELECT left(regexp_replace(query, '\\s+', ' ', 'g'), 100), state, xact_start
        FROM pg_stat_activity WHERE pid = $1 AND pg_has_role(usesysid, 'USAGE')
           OR pid = $1 AND pg_has_role('pg_read_all_stats', 'USAGE')";
    if pid == bgworker::own_pid() {
        return "this very session".into();
    }
    // With the caller's own eyes.
    let seen = with_settings(&PINNED, || {
        spi::query(SESSION, &[(pg_sys::INT4OID, Some(pid.into()))], |row, n| {
            let query = row.get::<String>(n, 0).filter(|query| !query.is_empty());
            (query, row.get::<String>(n, 1), row.get(n, 2).map(Timestamp))
        })
    });
    let Some((query, state, since)) = seen.into_iter().next() else { return format!("pid {pid}") };
    let mut facts: Vec<String> = Vec::new();
    if let Some(since) = since {
        facts.push(format!("in its transaction for {}", duration(clock::now().since(since))));
    }
    facts.extend(state.filter(|state| state != "active"));
    if let Some(query) = query {
        facts.push(format!("query: {query}"));
    }
    if facts.is_empty() { format!("pid {pid}") } else { format!("pid {pid} ({})", facts.join(", ")) }
}

fn prepared(id: pg_sys::TransactionId) -> String {
    const PREPARED: &str = "SELECT gid, prepared FROM pg_prepared_xacts WHERE transaction = $1";
    let found = catalog::read(PREPARED, &[(pg_sys::XIDOID, Some(pg_sys::Datum::from(id)))], |row, n| {
        (row.expect::<String>(n, 0), Timestamp(row.expect(n, 1)))
    });
    match found.first() {
        Some((gid, since)) => {
            format!("prepared transaction \"{gid}\", for {}", duration(clock::now().since(*since)))
        }
        None => "another transaction".into(),
    }
}
