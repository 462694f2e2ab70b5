//! The key of a relation: its primary key, else a unique index that identifies a row as surely.

use pgrx::pg_sys::{self, Oid};

use super::KeyColumn;
use super::relation::Relation;
use crate::error::PolicyError;
use crate::pg::catalog;

/// Columns of every valid, immediate, complete unique btree index, best index first. The index must
/// compare as its columns do, or its key would not be one for `=`.
const CANDIDATES: &str = "\
SELECT i.indexrelid, a.attname::text, a.atttypid, t.typarray, format_type(a.atttypid, -1),
       format('OPERATOR(%I.%s)', n.nspname, o.oprname),
       a.attnotnull AND i.indcollation[k.n] = a.attcollation AND t.typarray <> 0
       AND NOT EXISTS (SELECT FROM pg_constraint f WHERE f.conrelid = a.attrelid AND f.contype = 'n'
                       AND f.conkey = ARRAY[a.attnum] AND NOT f.convalidated)
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid AND x.relam = 403
CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) k(n)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n]
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_opclass c ON c.oid = i.indclass[k.n]
JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype
              AND m.amoprighttype = c.opcintype AND m.amopstrategy = 3
JOIN pg_operator o ON o.oid = m.amopopr
JOIN pg_namespace n ON n.oid = o.oprnamespace
WHERE i.indrelid = $1 AND i.indisunique AND i.indimmediate AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid, k.n";

/// Raises nothing and locks nothing.
pub fn find(relation: &Relation) -> Result<Vec<KeyColumn>, PolicyError> {
    let rows = catalog::read(CANDIDATES, &[(pg_sys::OIDOID, Some(relation.oid.into()))], |row, n| {
        let type_oid = row.expect(n, 2);
        let column = KeyColumn {
            name: row.expect(n, 1),
            type_oid,
            array_oid: row.expect(n, 3),
            type_sql: row.expect(n, 4),
            equals_sql: row.expect(n, 5),
            is_json_string: [pg_sys::INT8OID, pg_sys::NUMERICOID].contains(&catalog::base_type(type_oid)),
        };
        (row.expect::<Oid>(n, 0), column, row.expect::<bool>(n, 6))
    });
    rows.chunk_by(|one, other| one.0 == other.0)
        .find(|index| index.iter().all(|(_, _, is_usable)| *is_usable))
        .map(|index| index.iter().map(|(_, column, _)| column.clone()).collect())
        .ok_or_else(|| PolicyError::NoKey { relation: relation.sql.clone() })
}
