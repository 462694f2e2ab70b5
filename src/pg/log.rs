//! Messages that are no errors: lines in the server's log, notices to the client.

use std::borrow::Cow;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

/// Something that happened, and goes on by itself.
pub fn info(message: impl Into<Cow<'static, str>>) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "pg_expiry")
        .report(PgLogLevel::LOG);
}

/// Something that somebody should do something about.
pub fn warning(code: PgSqlErrorCode, message: impl Into<Cow<'static, str>>, hint: Option<&str>) {
    let mut report = ErrorReport::new(code, message, "pg_expiry");
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::WARNING);
}

/// Something that the client should know.
pub fn notice(message: impl Into<Cow<'static, str>>, detail: impl Into<Cow<'static, str>>) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "pg_expiry")
        .set_detail(detail.into())
        .report(PgLogLevel::NOTICE);
}
