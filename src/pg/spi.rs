//! A thin layer over SPI. pgrx's own assigns a transaction id to every statement and keeps each result
//! until SPI_finish; a worker that looks once a second can afford neither.

use std::ffi::{CString, c_int, c_long};
use std::marker::PhantomData;

use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};
use pgrx::{FromDatum, IntoDatum};

/// An open SPI connection; its results die with it.
pub struct Spi(());

/// Connects to SPI for the time of `f`.
pub fn connected<R>(f: impl FnOnce(&Spi) -> R) -> R {
    // SAFETY: inside a transaction. On an error the abort of the (sub)transaction closes the
    // connection by itself (AtEOSubXact_SPI), so it is closed here on success only.
    unsafe {
        check("SPI_connect", pg_sys::SPI_connect());
        let result = f(&Spi(()));
        check("SPI_finish", pg_sys::SPI_finish());
        result
    }
}

fn check(what: &str, code: c_int) {
    if code < 0 {
        // Only a wrong call gets here: SPI raises everything else by itself.
        panic!("{what} failed with code {code}");
    }
}

/// A prepared statement that outlives transactions; PostgreSQL plans it anew when a relation that it
/// speaks of has changed.
pub struct Plan {
    plan: pg_sys::SPIPlanPtr,
    arguments: usize,
}

impl Drop for Plan {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: a saved plan that nobody runs at the moment; freeing one does not raise.
            unsafe { pg_sys::SPI_freeplan(self.plan) };
        }
    }
}

/// An argument of a statement; `None` is NULL.
pub type Argument = Option<Datum>;

/// A text argument, copied into the current memory context.
pub fn text(value: &str) -> Argument {
    value.into_datum()
}

impl Spi {
    /// Prepares `sql` for arguments of these types and keeps the plan.
    pub fn prepare(&self, sql: &str, types: &[Oid]) -> Plan {
        let sql = CString::new(sql).expect("statements have no NUL");
        let mut types = types.to_vec();
        // SAFETY: connected; SPI copies the text and the types. SPI_keepplan moves the plan into
        // memory that lives as long as the process.
        unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr());
            if plan.is_null() {
                check("SPI_prepare", pg_sys::SPI_result);
            }
            check("SPI_keepplan", pg_sys::SPI_keepplan(plan));
            Plan { plan, arguments: types.len() }
        }
    }

    /// Runs a plan with a fresh snapshot. Reading alone assigns no transaction id.
    pub fn run(&self, plan: &Plan, arguments: &[Argument]) -> Rows<'_> {
        assert_eq!(plan.arguments, arguments.len(), "arguments of a prepared statement");
        let mut values: Vec<Datum> = arguments.iter().map(|a| a.unwrap_or(Datum::null())).collect();
        let nulls = null_flags(arguments);
        // SAFETY: connected; as many values and flags as the plan has arguments.
        unsafe {
            check(
                "SPI_execute_plan",
                pg_sys::SPI_execute_plan(plan.plan, values.as_mut_ptr(), nulls.as_ptr(), false, 0),
            );
            Rows::take()
        }
    }

    /// Runs one statement that is not worth keeping.
    pub fn run_once(&self, sql: &str, arguments: &[(Oid, Argument)]) -> Rows<'_> {
        let sql = CString::new(sql).expect("statements have no NUL");
        let mut types: Vec<Oid> = arguments.iter().map(|(oid, _)| *oid).collect();
        let given: Vec<Argument> = arguments.iter().map(|(_, value)| *value).collect();
        let mut values: Vec<Datum> = given.iter().map(|a| a.unwrap_or(Datum::null())).collect();
        let nulls = null_flags(&given);
        // SAFETY: connected; types, values and flags are of one length.
        unsafe {
            check(
                "SPI_execute_with_args",
                pg_sys::SPI_execute_with_args(
                    sql.as_ptr(),
                    types.len() as c_int,
                    types.as_mut_ptr(),
                    values.as_mut_ptr(),
                    nulls.as_ptr(),
                    false,
                    0 as c_long,
                ),
            );
            Rows::take()
        }
    }
}

fn null_flags(arguments: &[Argument]) -> Vec<std::ffi::c_char> {
    arguments.iter().map(|a| if a.is_some() { b' ' } else { b'n' } as _).collect()
}

/// The rows of one statement; freed when dropped, and gone at the latest with the connection.
pub struct Rows<'spi> {
    connection: PhantomData<&'spi Spi>,
    table: *mut pg_sys::SPITupleTable,
    /// Rows returned, or touched by a statement that returns none.
    pub count: usize,
}

impl Rows<'_> {
    fn take() -> Self {
        // SAFETY: SPI's globals belong to the statement that has just run.
        unsafe {
            let rows = Self {
                connection: PhantomData,
                table: pg_sys::SPI_tuptable,
                count: pg_sys::SPI_processed as usize,
            };
            pg_sys::SPI_tuptable = std::ptr::null_mut();
            rows
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bare value of a column (from 0), which lives as long as `self`.
    pub fn datum(&self, row: usize, column: usize) -> Option<Datum> {
        assert!(!self.table.is_null() && row < self.count, "row {row} of {}", self.count);
        let mut is_null = false;
        // SAFETY: the row exists (just checked); SPI_getbinval checks the column.
        let value = unsafe {
            pg_sys::SPI_getbinval(
                *(*self.table).vals.add(row),
                (*self.table).tupdesc,
                column as c_int + 1,
                &raw mut is_null,
            )
        };
        (!is_null).then_some(value)
    }

    /// A column as an owned Rust value. `T` must be what PostgreSQL's type maps to.
    pub fn get<T: FromDatum>(&self, row: usize, column: usize) -> Option<T> {
        let datum = self.datum(row, column)?;
        // SAFETY: the statement's author chose T to match the column's type.
        unsafe { T::from_datum(datum, false) }
    }

    /// [`Self::get`] of a column that is never NULL.
    pub fn expect<T: FromDatum>(&self, row: usize, column: usize) -> T {
        self.get(row, column).unwrap_or_else(|| panic!("column {column} is NULL"))
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        if !self.table.is_null() && !std::thread::panicking() {
            // SAFETY: a table of the open connection; freed once.
            unsafe { pg_sys::SPI_freetuptable(self.table) };
        }
    }
}

/// Runs `sql` in a connection of its own and maps each row.
pub fn query<T>(
    sql: &str,
    arguments: &[(Oid, Argument)],
    mut map: impl FnMut(&Rows<'_>, usize) -> T,
) -> Vec<T> {
    connected(|spi| {
        let rows = spi.run_once(sql, arguments);
        (0..rows.count).map(|row| map(&rows, row)).collect()
    })
}
