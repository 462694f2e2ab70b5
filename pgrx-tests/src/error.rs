//! What a statement that ought to fail failed with.

use std::fmt::Debug;

use postgres::error::DbError;

/// The five characters of the SQLSTATE; panics when the error is not the server's.
pub fn sqlstate(error: &postgres::Error) -> &str {
    match error.code() {
        Some(code) => code.code(),
        None => panic!("not an error of the server: {error:?}"),
    }
}

/// The server's error (code, message, detail, hint) of a statement that must fail.
#[track_caller]
pub fn db_error<T: Debug>(result: Result<T, postgres::Error>) -> DbError {
    let error = result.expect_err("the statement succeeded");
    match error.as_db_error() {
        Some(error) => error.clone(),
        None => panic!("not an error of the server: {error:?}"),
    }
}
