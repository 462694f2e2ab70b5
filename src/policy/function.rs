//! The cancel function: looked up by what the user wrote, checked against the relation.

use pgrx::pg_sys::{self, Oid};

use super::relation::Relation;
use super::{CancelFunction, Form, KeyColumn, Returns};
use crate::error::PolicyError;
use crate::pg::{catalog, spi, xact};
use crate::rules::signature;

/// A function as the catalog has it.
pub struct Candidate {
    pub oid: Oid,
    /// Qualified name and argument types.
    pub identity: String,
    pub schema: String,
    pub owner: Oid,
    pub owner_name: String,
    kind: String,
    returns_set: bool,
    /// Variadic, polymorphic or of pseudo types.
    is_generic: bool,
    return_type: Oid,
    return_type_sql: String,
    arguments: Vec<Oid>,
    argument_types: Vec<String>,
    /// What the relation's owner lacks: a right and the object.
    owner_lacks: Option<(&'static str, String)>,
}

const FACTS: &str = "\
SELECT f.oid, format('%I.%I(%s)', n.nspname, f.proname,
                     (SELECT string_agg(format_type(t, NULL), ',' ORDER BY i) FROM unnest(f.proargtypes) WITH ORDINALITY a(t, i))),
       n.nspname::text, f.proowner, pg_get_userbyid(f.proowner)::text, f.prokind::text, f.proretset,
       f.provariadic <> 0 OR EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (f.proargtypes) AND t.typtype = 'p'),
       f.prorettype, format_type(f.prorettype, NULL), f.proargtypes::oid[],
       ARRAY(SELECT format_type(t, -1) FROM unnest(f.proargtypes) WITH ORDINALITY a(t, i) ORDER BY i),
       CASE WHEN NOT has_schema_privilege($2, n.oid, 'USAGE') THEN 1
            WHEN NOT has_function_privilege($2, f.oid, 'EXECUTE') THEN 2 ELSE 0 END,
       format('SCHEMA %I', n.nspname)
FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE f.oid = ANY ($1) ORDER BY f.oid";

/// The functions of these numbers that exist, with the rights of `owner` on them.
pub fn candidates(oids: Vec<Oid>, owner: Oid) -> Vec<Candidate> {
    use pgrx::IntoDatum;
    let arguments = [(pg_sys::OIDARRAYOID, oids.into_datum()), (pg_sys::OIDOID, Some(owner.into()))];
    catalog::read(FACTS, &arguments, |row, n| {
        let identity: String = row.expect(n, 1);
        let owner_lacks = match row.expect::<i32>(n, 12) {
            1 => Some(("USAGE", row.expect(n, 13))),
            2 => Some(("EXECUTE", format!("FUNCTION {identity}"))),
            _ => None,
        };
        Candidate {
            oid: row.expect(n, 0),
            identity,
            schema: row.expect(n, 2),
            owner: row.expect(n, 3),
            owner_name: row.expect(n, 4),
            kind: row.expect(n, 5),
            returns_set: row.expect(n, 6),
            is_generic: row.expect(n, 7),
            return_type: row.expect(n, 8),
            return_type_sql: row.expect(n, 9),
            arguments: row.expect(n, 10),
            argument_types: row.expect(n, 11),
            owner_lacks,
        }
    })
}

/// Finds the function that `text` means under the search path in force: `cancel_order(bigint)`, or a
/// bare name, which then must have one function only that fits.
pub fn look_up(
    text: &str,
    relation: &Relation,
    key: &[KeyColumn],
) -> Result<(Candidate, CancelFunction), PolicyError> {
    let unknown = |detail| PolicyError::UnknownFunction {
        text: text.into(),
        detail,
        forms: forms(&spelled_name(text), relation, key),
    };
    let found = xact::subtransaction(|| oids(text)).map_err(|error| {
        if !error.is_about_input() {
            error.raise();
        }
        unknown(Some(format!("{}.", error.message)))
    })?;
    let (mut fitting, mut refused) = (Vec::new(), Vec::new());
    for candidate in candidates(found, relation.owner) {
        match candidate.check(relation, key) {
            Ok(function) => fitting.push((candidate, function)),
            Err(refusal) => refused.push(refusal),
        }
    }
    match (fitting.len(), refused.len()) {
        (1, _) => Ok(fitting.remove(0)),
        (0, 0) => Err(unknown(None)),
        (0, 1) => Err(refused.remove(0)),
        (0, _) => Err(unknown(Some("Functions of this name exist, but none fits the relation.".into()))),
        _ => Err(PolicyError::AmbiguousFunction {
            text: text.into(),
            candidates: fitting.iter().map(|(c, _)| c.identity.as_str()).collect::<Vec<_>>().join(", "),
        }),
    }
}

const BY_ARGUMENTS: &str = "SELECT pg_catalog.to_regprocedure($1)::pg_catalog.oid";
const NAME_PARTS: &str = "SELECT pg_catalog.parse_ident($1)";
const BY_NAME: &str = "\
SELECT f.oid FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) f.pronamespace
WHERE f.proname OPERATOR(pg_catalog.=) $1::pg_catalog.name
  AND CASE WHEN $2 IS NULL THEN pg_catalog.pg_function_is_visible(f.oid)
           ELSE n.nspname OPERATOR(pg_catalog.=) $2::pg_catalog.name END";

/// Every function that `text` may mean.
fn oids(text: &str) -> Vec<Oid> {
    let (name, has_arguments) = signature::split(text);
    if has_arguments {
        let arguments = [(pg_sys::TEXTOID, spi::text(text))];
        return spi::query(BY_ARGUMENTS, &arguments, |row, n| row.get(n, 0)).into_iter().flatten().collect();
    }
    let parts = spi::query(NAME_PARTS, &[(pg_sys::TEXTOID, spi::text(name))], |row, n| {
        row.expect::<Vec<String>>(n, 0)
    })
    .pop()
    .unwrap_or_default();
    let (function, schema) = match parts.as_slice() {
        [function] => (function, None),
        [schema, function] | [_, schema, function] => (function, Some(schema)),
        _ => return Vec::new(),
    };
    let arguments = [
        (pg_sys::TEXTOID, spi::text(function)),
        (pg_sys::TEXTOID, schema.and_then(|schema| spi::text(schema))),
    ];
    spi::query(BY_NAME, &arguments, |row, n| row.expect(n, 0))
}

fn spelled_name(text: &str) -> String {
    signature::split(text).0.trim().to_owned()
}

/// The three forms, spelled for this relation.
fn forms(name: &str, relation: &Relation, key: &[KeyColumn]) -> String {
    let types: Vec<&str> = key.iter().map(|column| column.type_sql.as_str()).collect();
    let mut forms =
        format!("{name}({}) for each row, {name}({}) for each row", types.join(", "), relation.sql);
    match types.as_slice() {
        [one] => forms += &format!(", {name}({one}[]) for a whole batch"),
        _ => forms += &format!(" ({name}(key[]) for a whole batch needs a key of one column)"),
    }
    forms
}

impl Candidate {
    /// Whether it can be the relation's cancel function.
    pub fn check(&self, relation: &Relation, key: &[KeyColumn]) -> Result<CancelFunction, PolicyError> {
        let identity = self.identity.clone();
        let kind = match self.kind.as_str() {
            "f" => None,
            "p" => Some("a procedure"),
            "a" => Some("an aggregate"),
            _ => Some("a window function"),
        };
        if let Some(kind) = kind {
            return Err(PolicyError::NotAFunction { identity, kind });
        }
        if self.schema.starts_with("pg_temp") {
            return Err(PolicyError::TemporaryFunction { identity });
        }
        let Some(form) = self.form(relation, key) else {
            let (name, _) = signature::split(&self.identity);
            return Err(PolicyError::FunctionDoesNotFit { forms: forms(name, relation, key), identity });
        };
        let returns = self.returns(form, key)?;
        if let Some((right, object)) = &self.owner_lacks {
            return Err(PolicyError::OwnerLacksRight {
                owner: relation.owner_name.clone(),
                right,
                object: object.clone(),
            });
        }
        Ok(CancelFunction {
            oid: self.oid,
            identity,
            form,
            returns,
            argument_types: self.argument_types.clone(),
        })
    }

    fn form(&self, relation: &Relation, key: &[KeyColumn]) -> Option<Form> {
        if self.is_generic {
            return None;
        }
        let takes = |argument: Oid, column: &KeyColumn| {
            argument == column.type_oid || catalog::is_convertible(column.type_oid, argument)
        };
        match self.arguments.as_slice() {
            [row] if *row == relation.row_type => Some(Form::Row),
            arguments
                if arguments.len() == key.len() && arguments.iter().zip(key).all(|(&a, c)| takes(a, c)) =>
            {
                Some(Form::Key)
            }
            // The array is passed as it is, so each key must be an element already.
            [keys] if key.len() == 1 => catalog::element_type(*keys)
                .filter(|&element| catalog::is_same_representation(key[0].type_oid, element))
                .map(|_| Form::Keys),
            _ => None,
        }
    }

    fn returns(&self, form: Form, key: &[KeyColumn]) -> Result<Returns, PolicyError> {
        let refuse = |returned| {
            let allowed = match form {
                Form::Row | Form::Key => {
                    "void (done), boolean (done or declined) or jsonb (done, and the event's data)"
                }
                Form::Keys => "void (all done) or the array of the keys that it has cancelled",
            };
            Err(PolicyError::ReturnType { identity: self.identity.clone(), returned, allowed })
        };
        if self.returns_set {
            return refuse(format!("a set of {}", self.return_type_sql));
        }
        match (form, self.return_type) {
            (_, pg_sys::VOIDOID) => Ok(Returns::Nothing),
            (Form::Row | Form::Key, pg_sys::BOOLOID) => Ok(Returns::Verdict),
            (Form::Row | Form::Key, pg_sys::JSONBOID) => Ok(Returns::Data),
            (Form::Keys, returned)
                if catalog::element_type(returned)
                    .is_some_and(|element| catalog::is_same_representation(element, key[0].type_oid)) =>
            {
                Ok(Returns::Keys)
            }
            _ => refuse(self.return_type_sql.clone()),
        }
    }
}
