//! How the library was loaded.

use pgrx::pg_sys;

/// Whether the postmaster is loading shared_preload_libraries: the time to ask for shared memory,
/// processes and hooks. Not so in pg_upgrade's servers, where nothing may run beside the upgrade.
pub fn is_in_progress() -> bool {
    // SAFETY: plain globals.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade }
}
