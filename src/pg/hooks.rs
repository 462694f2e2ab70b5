//! Hooks into other sessions' statements: so that a statement which needs a database for itself finds
//! nobody of ours there, and what COMMIT PREPARED and ALTER and DROP EXTENSION change is noticed.
//!
//! Nothing in here may make a statement fail that would pass without us.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::pg_sys::{NodeTag, Oid};

use super::{catalog, database, extension, wake};

const OURS: &CStr = c"pg_expiry";

static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;
static mut PREVIOUS_ACCESS: pg_sys::object_access_hook_type = None;

thread_local! {
    static STEP_ASIDE: Cell<fn(Oid)> = const { Cell::new(|_| ()) };
}

/// Installs the hooks. `step_aside` has our processes leave a database until the transaction ends.
/// Only while shared_preload_libraries are loaded.
pub fn install(step_aside: fn(Oid)) {
    STEP_ASIDE.set(step_aside);
    // SAFETY: the postmaster, single-threaded, before it forks; the hooks in force are kept and called.
    unsafe {
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
        PREVIOUS_ACCESS = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(object_access);
    }
}

/// What a utility statement means to us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Nothing,
    /// It needs this database for itself, if the user may do that to it.
    Needs(Option<Oid>),
    /// It drops or updates our extension, if the user may do that: it needs our tables for itself.
    DropsExtension(Option<Oid>),
    AltersExtension(Option<Oid>),
    /// It changes pg_database in another way.
    ChangesDatabases,
    /// It changes the settings that sessions in this database start with.
    ChangesSettings(Oid),
    CommitsPrepared,
}

// SAFETY: called by PostgreSQL alone, as ProcessUtility_hook, with a statement that is to be run.
#[pg_guard]
#[allow(clippy::too_many_arguments)] // those of ProcessUtility_hook_type
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    is_read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: a utility statement as the parser made it.
    let meaning = unsafe { meaning((*statement).utilityStmt) };
    match meaning {
        Meaning::Needs(database) => {
            database.into_iter().for_each(STEP_ASIDE.get());
            wake::launcher_at_commit();
        }
        Meaning::DropsExtension(Some(extension)) if !catalog::is_read_only() => {
            STEP_ASIDE.get()(catalog::database());
            extension::lock_relations(extension);
        }
        Meaning::AltersExtension(Some(extension)) if !catalog::is_read_only() => {
            extension::lock_relations(extension);
            // The version of our SQL objects may be another one then.
            wake::at_commit();
        }
        Meaning::ChangesDatabases => wake::launcher_at_commit(),
        Meaning::ChangesSettings(database) => wake::restart_at_commit(database),
        Meaning::DropsExtension(_)
        | Meaning::AltersExtension(_)
        | Meaning::CommitsPrepared
        | Meaning::Nothing => {}
    }
    // SAFETY: the arguments that this hook was called with; the previous hook is set once, before this
    // one can be called.
    unsafe {
        match PREVIOUS_UTILITY {
            Some(previous) => pg_guard_ffi_boundary(|| {
                previous(
                    statement,
                    query,
                    is_read_only,
                    context,
                    parameters,
                    environment,
                    destination,
                    completion,
                );
            }),
            None => pg_sys::standard_ProcessUtility(
                statement,
                query,
                is_read_only,
                context,
                parameters,
                environment,
                destination,
                completion,
            ),
        }
    }
    if meaning == Meaning::CommitsPrepared {
        wake::at_commit_prepared();
    }
}

/// # Safety
/// `node` is a utility statement.
unsafe fn meaning(node: *mut pg_sys::Node) -> Meaning {
    // SAFETY: the tag says what the node is.
    unsafe {
        match (*node).type_ {
            NodeTag::T_TransactionStmt => {
                let kind = (*node.cast::<pg_sys::TransactionStmt>()).kind;
                if kind == pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED {
                    return Meaning::CommitsPrepared;
                }
                Meaning::Nothing
            }
            NodeTag::T_DropStmt => {
                let drop = node.cast::<pg_sys::DropStmt>();
                if (*drop).removeType == pg_sys::ObjectType::OBJECT_EXTENSION && names_us((*drop).objects) {
                    return Meaning::DropsExtension(extension::owned(OURS));
                }
                Meaning::Nothing
            }
            NodeTag::T_AlterExtensionStmt => {
                let name = (*node.cast::<pg_sys::AlterExtensionStmt>()).extname;
                if !name.is_null() && CStr::from_ptr(name) == OURS {
                    return Meaning::AltersExtension(extension::owned(OURS));
                }
                Meaning::Nothing
            }
            NodeTag::T_DropdbStmt => Meaning::Needs(owned((*node.cast::<pg_sys::DropdbStmt>()).dbname)),
            NodeTag::T_CreatedbStmt => {
                let options = (*node.cast::<pg_sys::CreatedbStmt>()).options;
                Meaning::Needs(option(options, c"template").and_then(|template| {
                    let template = pg_sys::defGetString(template);
                    owned(template)
                }))
            }
            NodeTag::T_RenameStmt => {
                let rename = node.cast::<pg_sys::RenameStmt>();
                if (*rename).renameType == pg_sys::ObjectType::OBJECT_DATABASE {
                    return Meaning::Needs(owned((*rename).subname));
                }
                Meaning::Nothing
            }
            NodeTag::T_AlterDatabaseStmt => {
                let alter = node.cast::<pg_sys::AlterDatabaseStmt>();
                if option((*alter).options, c"tablespace").is_some() {
                    return Meaning::Needs(owned((*alter).dbname));
                }
                Meaning::ChangesDatabases
            }
            NodeTag::T_AlterDatabaseSetStmt => {
                let alter = node.cast::<pg_sys::AlterDatabaseSetStmt>();
                owned((*alter).dbname).map_or(Meaning::Nothing, Meaning::ChangesSettings)
            }
            _ => Meaning::Nothing,
        }
    }
}

/// Whether our extension is in a list of names.
///
/// # Safety
/// `names` is a list of String nodes.
unsafe fn names_us(names: *mut pg_sys::List) -> bool {
    if names.is_null() {
        return false;
    }
    // SAFETY: a list has as many elements as its length says.
    unsafe {
        let elements = std::slice::from_raw_parts((*names).elements, (*names).length as usize);
        elements.iter().any(|element| {
            let name = (*element.ptr_value.cast::<pg_sys::String>()).sval;
            !name.is_null() && CStr::from_ptr(name) == OURS
        })
    }
}

/// The database of that name, if there is one and the current user may do as he likes with it.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn owned(name: *const c_char) -> Option<Oid> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null.
    database::owned(unsafe { CStr::from_ptr(name) })
}

/// The option of that name among a statement's options, unless it is DEFAULT.
///
/// # Safety
/// `options` is a list of DefElem.
unsafe fn option(options: *mut pg_sys::List, name: &CStr) -> Option<*mut pg_sys::DefElem> {
    if options.is_null() {
        return None;
    }
    // SAFETY: a list has as many elements as its length says.
    unsafe {
        let elements = std::slice::from_raw_parts((*options).elements, (*options).length as usize);
        let mut found = elements.iter().map(|element| element.ptr_value.cast::<pg_sys::DefElem>());
        let found = found.find(|option| CStr::from_ptr((**option).defname) == name);
        found.filter(|option| !(**option).arg.is_null())
    }
}

/// Called for each object that is dropped, however it comes to that.
// SAFETY: called by PostgreSQL alone, as object_access_hook.
#[pg_guard]
unsafe extern "C-unwind" fn object_access(
    access: pg_sys::ObjectAccessType::Type,
    class: Oid,
    object: Oid,
    part: c_int,
    argument: *mut c_void,
) {
    // SAFETY: set once, before this hook can be called.
    if let Some(previous) = unsafe { PREVIOUS_ACCESS } {
        // SAFETY: the arguments that this hook was called with.
        unsafe { pg_guard_ffi_boundary(|| previous(access, class, object, part, argument)) };
    }
    if access == pg_sys::ObjectAccessType::OAT_DROP
        && class == pg_sys::ExtensionRelationId
        && database::extension_name(object).as_deref() == Some("pg_expiry")
    {
        wake::at_commit();
    }
}
