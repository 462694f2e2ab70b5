//! From a column and what the policy says about it to the rule of when rows are due.

use pgrx::pg_sys;

use super::definition::{Definition, Values};
use super::relation::{Column, Relation};
use crate::error::PolicyError;
use crate::pg::{catalog, spi};
use crate::rules::deadline::{ColumnKind, DeadlineRule};

/// The column that the user means: its very name, or as SQL would read it (`PAY_BY`, `"Pay By"`).
pub fn column<'a>(relation: &'a Relation, text: &str) -> Result<&'a Column, PolicyError> {
    if let Some(column) = relation.column_named(text) {
        return Ok(column);
    }
    const AS_SQL: &str = "SELECT CASE WHEN $1 ~ '^\\s*([[:alpha:]_][[:alnum:]_$]*|\"([^\"]|\"\")+\")\\s*$' \
                          THEN (parse_ident($1))[1] END";
    catalog::read(AS_SQL, &[(pg_sys::TEXTOID, spi::text(text))], |row, n| row.get::<String>(n, 0))
        .pop()
        .flatten()
        .and_then(|name| relation.column_named(&name))
        .ok_or_else(|| PolicyError::UnknownColumn { relation: relation.sql.clone(), column: text.into() })
}

/// `given` is what the caller has said just now: that must make sense for the column; a default or
/// what was said earlier may be beside the point.
pub fn rule(column: &Column, values: &Values, given: &Definition) -> Result<DeadlineRule, PolicyError> {
    if column.is_virtual {
        return Err(PolicyError::VirtualColumn { column: column.name.clone() });
    }
    let does_not_apply = |parameter, applies_to| PolicyError::DoesNotApply {
        parameter,
        column: column.name.clone(),
        column_type: column.type_sql.clone(),
        applies_to,
    };
    let zone = || {
        values.time_zone.clone().ok_or_else(|| PolicyError::NeedsTimeZone {
            column: column.name.clone(),
            column_type: column.type_sql.clone(),
        })
    };
    let kind = match catalog::base_type(column.type_oid) {
        pg_sys::TIMESTAMPTZOID => ColumnKind::Timestamptz,
        pg_sys::TIMESTAMPOID => ColumnKind::Timestamp { zone: zone()? },
        pg_sys::DATEOID => ColumnKind::Date { zone: zone()? },
        pg_sys::INT4OID | pg_sys::INT8OID => match values.epoch {
            Some(unit) => ColumnKind::Epoch { unit },
            None => {
                return Err(PolicyError::NeedsEpoch {
                    column: column.name.clone(),
                    column_type: column.type_sql.clone(),
                });
            }
        },
        _ => {
            return Err(PolicyError::ColumnType {
                column: column.name.clone(),
                column_type: column.type_sql.clone(),
            });
        }
    };
    if given.time_zone.is_some() && !matches!(kind, ColumnKind::Timestamp { .. } | ColumnKind::Date { .. }) {
        return Err(does_not_apply("time_zone", "timestamp and date"));
    }
    if given.epoch.is_some() && !matches!(kind, ColumnKind::Epoch { .. }) {
        return Err(does_not_apply("epoch", "integer and bigint"));
    }
    Ok(DeadlineRule { column_sql: quoted(&column.name), kind, timeout: values.timeout })
}

/// An identifier, quoted always: which words are reserved differs between versions.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
