//! SQL that is made of users' texts: each comes out of PostgreSQL's lexer as it was put in, and nothing else does.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use pg_expiry_fuzz::lexer::{Piece, pieces, quoted};
use pg_expiry_fuzz::rules::deadline::{ColumnKind, DeadlineRule, EpochUnit, Timeout, literal};

#[derive(Arbitrary, Debug)]
struct Input {
    column: String,
    zone: String,
    kind: u8,
    timeout: Option<(i32, i32, i64)>,
}

/// What our own SQL consists of.
fn is_ours(outside: &str) -> bool {
    !outside.contains(';')
        && !outside.contains("--")
        && !outside.contains("/*")
        && outside.chars().all(|c| c.is_ascii_alphanumeric() || " ._()<>=+-*/,:\n".contains(c))
}

fuzz_target!(|input: Input| {
    let zone = input.zone.replace('\0', "");
    assert_eq!(
        pieces(&literal(&zone)),
        Some(vec![
            Piece::Outside(String::new()),
            Piece::Literal(zone.clone()),
            Piece::Outside(String::new())
        ])
    );

    let column = input.column.replace('\0', "");
    let kind = match input.kind % 5 {
        0 => ColumnKind::Timestamptz,
        1 => ColumnKind::Timestamp { zone: zone.clone() },
        2 => ColumnKind::Date { zone: zone.clone() },
        3 => ColumnKind::Epoch { unit: EpochUnit::Seconds },
        _ => ColumnKind::Epoch { unit: EpochUnit::Milliseconds },
    };
    let (months, days, micros) = input.timeout.unwrap_or_default();
    let rule = DeadlineRule { column_sql: quoted(&column), kind, timeout: Timeout { months, days, micros } };
    for sql in [rule.stated(), rule.instant(), rule.is_due("$1", "$2"), rule.is_later("$1")] {
        let pieces = pieces(&sql).unwrap_or_else(|| panic!("{sql}"));
        assert!(pieces.contains(&Piece::Name(column.clone())), "{sql}");
        let (mut open, mut closed) = (0, 0);
        for piece in pieces {
            match piece {
                Piece::Name(name) => assert_eq!(name, column, "{sql}"),
                // Constants of our own are bounds.
                Piece::Literal(text) => assert!(text == zone || text.len() < 40, "{text:?} in {sql}"),
                Piece::Outside(text) => {
                    assert!(is_ours(&text.replace(['$', '\''], "")), "{text:?} in {sql}");
                    open += text.matches('(').count();
                    closed += text.matches(')').count();
                }
            }
        }
        assert_eq!(open, closed, "{sql}");
    }
});
