//! PostgreSQL's lexical rules, as far as quotes go: what is outside of them, and what is within.

/// A piece of SQL.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Outside(String),
    /// A string constant, as the value that it stands for.
    Literal(String),
    /// A name in double quotes, as it is.
    Name(String),
}

/// The pieces of `sql`; `None` if a quote does not end, or an escape is none that we write.
pub fn pieces(sql: &str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut outside = String::new();
    let mut rest = sql.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\'' && c != '"' {
            outside.push(c);
            continue;
        }
        let has_escapes = c == '\'' && outside.ends_with('E');
        if has_escapes {
            outside.pop();
        }
        pieces.push(Piece::Outside(std::mem::take(&mut outside)));
        let mut inside = String::new();
        loop {
            match rest.next()? {
                '\\' if has_escapes => inside.push(rest.next_if_eq(&'\\')?),
                end if end == c && rest.next_if_eq(&c).is_some() => inside.push(c),
                end if end == c => break,
                other => inside.push(other),
            }
        }
        pieces.push(if c == '"' { Piece::Name(inside) } else { Piece::Literal(inside) });
    }
    pieces.push(Piece::Outside(outside));
    Some(pieces)
}

/// A name as `quote_ident` writes it.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
