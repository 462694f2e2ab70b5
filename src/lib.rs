//! pg_expiry: rows with a deadline are cancelled at their deadline, exactly once, inside PostgreSQL.
//! This file is the manifest; ARCHITECTURE.md tells how the parts fit.

use std::ffi::CStr;

mod api;
mod board;
mod control;
mod error;
mod events;
mod installed;
mod launcher;
mod pg;
mod policies;
mod policy;
mod rules;
mod settings;
mod why;
mod worker;

/// Cargo.toml's, for C.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL"),
};

::pgrx::pg_module_magic!(name = c"pg_expiry", version = VERSION);

/// Called when the library is loaded: by the postmaster under shared_preload_libraries, or by the
/// first backend that calls one of our functions.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::register();
    if pg::preload::is_in_progress() {
        pg::shmem::register(&board::AREAS);
        pg::bgworker::register(launcher::run, worker::run);
        pg::hooks::install(control::step_aside);
    }
}

pgrx::extension_sql_file!("../sql/schema/tables.sql", name = "tables", bootstrap);
pgrx::extension_sql_file!("../sql/schema/events.sql", name = "events", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/schema/processes.sql", name = "processes", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/schema/views.sql", name = "views", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/schema/grants.sql", name = "grants", finalize);
