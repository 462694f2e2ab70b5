//! The relation of a policy: its facts, and whether a policy can be on it.

use pgrx::pg_sys::{self, Oid};

use crate::error::PolicyError;
use crate::pg::catalog;

#[derive(Clone, Debug)]
pub struct Relation {
    pub oid: Oid,
    pub schema: String,
    pub name: String,
    /// Qualified and quoted.
    pub sql: String,
    /// `pg_class.relkind`.
    kind: String,
    is_temporary: bool,
    is_internal: bool,
    has_inheritance_children: bool,
    pub owner: Oid,
    pub owner_name: String,
    owner_lacks: Option<(&'static str, String)>,
    pub row_type: Oid,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug)]
pub struct Column {
    pub number: i16,
    pub name: String,
    pub type_oid: Oid,
    /// As SQL spells it.
    pub type_sql: String,
    /// Generated when it is read: no index can have it.
    pub is_virtual: bool,
}

const FACTS: &str = "\
SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence = 't',
       n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast', 'expiry'),
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
       c.relowner, pg_get_userbyid(c.relowner)::text, c.reltype,
       format('%I.%I', n.nspname, c.relname),
       CASE WHEN NOT has_schema_privilege(c.relowner, n.oid, 'USAGE') THEN 1
            WHEN NOT has_table_privilege(c.relowner, c.oid, 'SELECT') THEN 2
            WHEN NOT has_table_privilege(c.relowner, c.oid, 'UPDATE') THEN 3
            ELSE 0 END,
       format('SCHEMA %I', n.nspname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";

const COLUMNS: &str = "\
SELECT attnum, attname::text, atttypid, format_type(atttypid, atttypmod), attgenerated = 'v' FROM pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum";

/// A policy on a partitioned table above, or where `$2`, on a partition below.
const RELATED: &str = "\
SELECT p.name, format('%I.%I', n.nspname, c.relname)
FROM expiry.policy p JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid <> $1 AND (c.oid IN (SELECT pg_partition_ancestors($1))
                       OR $2 AND c.oid IN (SELECT relid FROM pg_partition_tree($1)))
LIMIT 1";

impl Relation {
    /// `None`: it has been dropped. Takes no lock.
    pub fn find(oid: Oid) -> Option<Self> {
        let id = [(pg_sys::OIDOID, Some(oid.into()))];
        let mut relation = catalog::read(FACTS, &id, |row, n| {
            let sql: String = row.expect(n, 9);
            let owner_lacks = match row.expect::<i32>(n, 10) {
                1 => Some(("USAGE", row.expect(n, 11))),
                2 => Some(("SELECT", sql.clone())),
                3 => Some(("UPDATE", sql.clone())),
                _ => None,
            };
            Self {
                oid,
                schema: row.expect(n, 0),
                name: row.expect(n, 1),
                sql,
                kind: row.expect(n, 2),
                is_temporary: row.expect(n, 3),
                is_internal: row.expect(n, 4),
                has_inheritance_children: row.expect(n, 5),
                owner: row.expect(n, 6),
                owner_name: row.expect(n, 7),
                owner_lacks,
                row_type: row.expect(n, 8),
                columns: Vec::new(),
            }
        })
        .pop()?;
        relation.columns = catalog::read(COLUMNS, &id, |row, n| Column {
            number: row.expect(n, 0),
            name: row.expect(n, 1),
            type_oid: row.expect(n, 2),
            type_sql: row.expect(n, 3),
            is_virtual: row.expect(n, 4),
        });
        Some(relation)
    }

    pub fn is_partitioned(&self) -> bool {
        self.kind == "p"
    }

    pub fn column(&self, number: i16) -> Option<&Column> {
        self.columns.iter().find(|column| column.number == number)
    }

    pub fn column_named(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Whether a policy can be on this kind of relation.
    pub fn check_kind(&self) -> Result<(), PolicyError> {
        let kind = match self.kind.as_str() {
            _ if self.is_internal => "system table",
            _ if self.is_temporary => "temporary relation",
            "r" | "p" => return Ok(()),
            "v" => "view",
            "m" => "materialized view",
            "f" => "foreign table",
            "S" => "sequence",
            "i" | "I" => "index",
            "c" => "composite type",
            _ => "relation of another kind",
        };
        Err(PolicyError::WrongKind { relation: self.sql.clone(), kind })
    }

    /// Whether the owner, as whom everything runs, can see and lock all rows.
    pub fn check_owner_rights(&self) -> Result<(), PolicyError> {
        if let Some((right, object)) = &self.owner_lacks {
            return Err(PolicyError::OwnerLacksRight {
                owner: self.owner_name.clone(),
                right,
                object: object.clone(),
            });
        }
        if catalog::is_row_security_active(self.oid, self.owner) {
            return Err(PolicyError::RowSecurityForced {
                relation: self.sql.clone(),
                owner: self.owner_name.clone(),
            });
        }
        Ok(())
    }

    /// Whether the key can reach all rows that a user thinks of. Of a policy that exists already only
    /// the relation's own rows are touched.
    pub fn check_inheritance(&self) -> Result<(), PolicyError> {
        if self.has_inheritance_children {
            return Err(PolicyError::HasInheritanceChildren { relation: self.sql.clone() });
        }
        Ok(())
    }

    /// Whether another policy has the same rows: one of a partitioned table above this one, and
    /// with `also_below` one of a partition of this one.
    pub fn check_partitions(&self, also_below: bool) -> Result<(), PolicyError> {
        let arguments = [(pg_sys::OIDOID, Some(self.oid.into())), (pg_sys::BOOLOID, Some(also_below.into()))];
        match catalog::read(RELATED, &arguments, |row, n| (row.expect(n, 0), row.expect(n, 1))).pop() {
            None => Ok(()),
            Some((policy, other)) => {
                Err(PolicyError::PartitionHasPolicy { relation: self.sql.clone(), other, policy })
            }
        }
    }
}
