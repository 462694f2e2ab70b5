//! Check hooks that refuse SET in a session: the setting is the worker's, a session's value would do
//! nothing. ALTER SYSTEM, ALTER DATABASE ... SET and postgresql.conf pass.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use pgrx::pg_sys;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PgSqlErrorCode};

/// Whether a value from this source may stand; if not, says why (55P02).
fn is_allowed(source: pg_sys::GucSource::Type) -> bool {
    let from_session = matches!(
        source,
        pg_sys::GucSource::PGC_S_SESSION
            | pg_sys::GucSource::PGC_S_CLIENT
            | pg_sys::GucSource::PGC_S_USER
            | pg_sys::GucSource::PGC_S_DATABASE_USER
    );
    if from_session {
        // SAFETY: globals that guc.c reads right after a check hook returned false; the strings are
        // copied into memory that it frees.
        unsafe {
            pg_sys::GUC_check_errcode(PgSqlErrorCode::ERRCODE_CANT_CHANGE_RUNTIME_PARAM as c_int);
            pg_sys::GUC_check_errmsg_string = pg_sys::pstrdup(
                c"settings of pg_expiry cannot be changed in a session or for a role".as_ptr(),
            );
            pg_sys::GUC_check_errhint_string = pg_sys::pstrdup(
                c"Use ALTER SYSTEM, ALTER DATABASE ... SET, or expiry.alter_policy().".as_ptr(),
            );
        }
    }
    !from_session
}

macro_rules! refuse_in_session {
    ($name:ident, $value:ty) => {
        // SAFETY: called by guc.c alone, as a check hook.
        #[pgrx::pg_guard]
        pub unsafe extern "C-unwind" fn $name(
            _value: *mut $value,
            _extra: *mut *mut c_void,
            source: pg_sys::GucSource::Type,
        ) -> bool {
            is_allowed(source)
        }
    };
}

refuse_in_session!(refuse_in_session_bool, bool);
refuse_in_session!(refuse_in_session_int, c_int);
refuse_in_session!(refuse_in_session_real, f64);
refuse_in_session!(refuse_in_session_string, *mut c_char);

type Text = GucSetting<Option<CString>>;
/// Guarded against panics.
type TextCheck =
    unsafe extern "C-unwind" fn(*mut *mut c_char, *mut *mut c_void, pg_sys::GucSource::Type) -> bool;

pub fn define_bool(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<bool>,
    context: GucContext,
    flags: GucFlags,
) {
    // SAFETY: the hook is guarded against panics.
    unsafe {
        GucRegistry::define_bool_guc_with_hooks(
            name,
            short,
            long,
            setting,
            context,
            flags,
            Some(refuse_in_session_bool),
            None,
            None,
        );
    }
}

#[allow(clippy::too_many_arguments)] // those of PostgreSQL's DefineCustomIntVariable
pub fn define_int(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    min: i32,
    max: i32,
    context: GucContext,
    flags: GucFlags,
) {
    // SAFETY: the hook is guarded against panics.
    unsafe {
        GucRegistry::define_int_guc_with_hooks(
            name,
            short,
            long,
            setting,
            min,
            max,
            context,
            flags,
            Some(refuse_in_session_int),
            None,
            None,
        );
    }
}

#[allow(clippy::too_many_arguments)] // those of PostgreSQL's DefineCustomRealVariable
pub fn define_real(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<f64>,
    min: f64,
    max: f64,
    context: GucContext,
    flags: GucFlags,
) {
    // The hook is guarded against panics.
    GucRegistry::define_float_guc_with_hooks(
        name,
        short,
        long,
        setting,
        min,
        max,
        context,
        flags,
        Some(refuse_in_session_real),
        None,
        None,
    );
}

pub fn define_string(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static Text,
    context: GucContext,
    flags: GucFlags,
) {
    define_text(name, short, long, setting, context, flags, refuse_in_session_string);
}

/// As [`define_string`], and refuses what NOTIFY would refuse.
pub fn define_channel(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static Text,
    context: GucContext,
    flags: GucFlags,
) {
    define_text(name, short, long, setting, context, flags, check_channel);
}

fn define_text(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static Text,
    context: GucContext,
    flags: GucFlags,
    check: TextCheck,
) {
    // SAFETY: the hook is guarded against panics.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            name,
            short,
            long,
            setting,
            context,
            flags,
            Some(check),
            None,
            None,
        );
    }
}

// SAFETY: called by guc.c alone, as a check hook of a string.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn check_channel(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    source: pg_sys::GucSource::Type,
) -> bool {
    const LONGEST: usize = 63;
    // SAFETY: guc.c passes a string, or none.
    let fits = unsafe { (*value).is_null() || CStr::from_ptr(*value).count_bytes() <= LONGEST };
    if !fits {
        // SAFETY: see is_allowed().
        unsafe {
            pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(c"A channel has at most 63 bytes.".as_ptr());
        }
    }
    fits && is_allowed(source)
}

/// Refuses settings `prefix.*` that nobody has defined.
pub fn reserve_prefix(prefix: &CStr) {
    // SAFETY: called once by `_PG_init`, after all settings are defined.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}
