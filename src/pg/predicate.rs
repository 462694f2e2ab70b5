//! Conditions on a row's own columns, with PostgreSQL's own parser: read as CREATE INDEX reads a
//! partial index's WHERE, kept as an analyzed tree, and written back as text.
//!
//! The tree is what makes renames harmless: it holds numbers, so that the text written from it always
//! has today's names. Whoever calls in here has taken on the rights of the relation's owner: planning
//! runs immutable functions.

use std::ffi::{CStr, CString};

use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::{PgSqlErrorCode, is_a};

use super::guc;

/// Names come out unqualified only if they are of pg_catalog: the text has one meaning wherever it
/// runs under this path.
pub const PINNED_SEARCH_PATH: &str = "pg_catalog, pg_temp";

/// With these no text that PostgreSQL writes depends on the session, and every session reads it alike.
const PINNED_STYLE: [(&str, &str); 8] = [
    ("search_path", PINNED_SEARCH_PATH),
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "3"),
    ("lc_monetary", "C"),
    ("quote_all_identifiers", "off"),
];

/// A column that a condition speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub number: i16,
    pub type_oid: Oid,
}

/// Reads `text` as a condition on the rows of `relation`, names resolved by the search path in force.
/// Returns the analyzed tree, as in pg_index.indpred. Raises what is wrong with it. The caller holds a
/// lock on the relation.
pub fn parse(relation: Oid, text: &str) -> String {
    let text = CString::new(text).expect("text of PostgreSQL has no NUL");
    // SAFETY: the recipe of CREATE INDEX (transformIndexStmt, CheckPredicate) on nodes of the current
    // memory context; the relation is locked by the caller and closed again, or by the rollback.
    unsafe {
        let raw = sole_expression(&text);
        let relation = pg_sys::relation_open(relation, pg_sys::NoLock as _);
        let state = pg_sys::make_parsestate(std::ptr::null_mut());
        (*state).p_sourcetext = text.as_ptr();
        let item = pg_sys::addRangeTableEntryForRelation(
            state,
            relation,
            pg_sys::AccessShareLock as _,
            std::ptr::null_mut(),
            false,
            true,
        );
        pg_sys::addNSItemToQuery(state, item, false, true, true);
        let node = pg_sys::transformExpr(state, raw, pg_sys::ParseExprKind::EXPR_KIND_INDEX_PREDICATE);
        let node = pg_sys::coerce_to_boolean(state, node, c"WHERE".as_ptr());
        pg_sys::assign_expr_collations(state, node);
        if pg_sys::contain_mutable_functions(pg_sys::expression_planner(node.cast()).cast()) {
            refuse(
                PgSqlErrorCode::ERRCODE_INVALID_OBJECT_DEFINITION,
                "functions in a predicate must be marked IMMUTABLE",
            );
        }
        if columns_of_node(node).iter().any(|column| column.number <= 0) {
            refuse(
                PgSqlErrorCode::ERRCODE_INVALID_OBJECT_DEFINITION,
                "a predicate cannot use system columns or whole rows",
            );
        }
        let tree = owned(pg_sys::nodeToString(node.cast()));
        pg_sys::free_parsestate(state);
        pg_sys::relation_close(relation, pg_sys::NoLock as _);
        tree
    }
}

/// The text of a tree with today's names. Takes ACCESS SHARE on the relation.
pub fn deparse(relation: Oid, tree: &str) -> String {
    guc::with_settings(&PINNED_STYLE, || {
        // SAFETY: the tree was written by `parse` in this database; raises if something is gone.
        unsafe {
            let node = read(tree);
            let name = pg_sys::get_rel_name(relation);
            if name.is_null() {
                refuse(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, "the relation does not exist");
            }
            let context = pg_sys::deparse_context_for(name, relation);
            owned(pg_sys::deparse_expression(node, context, false, false))
        }
    })
}

/// The columns that a tree speaks of, with the types that they had when it was parsed.
pub fn columns_of(tree: &str) -> Vec<Column> {
    // SAFETY: the tree was written by `parse` in this database.
    unsafe { columns_of_node(read(tree)) }
}

/// Whether two trees (of one relation) select the same rows, as far as the planner can prove it; `None`
/// stands for no condition at all.
pub fn is_equivalent(one: Option<&str>, other: Option<&str>) -> bool {
    // SAFETY: trees of this database, read into the current memory context and normalized as
    // RelationGetIndexPredicate does, which is what predicate_implied_by expects.
    unsafe {
        let (one, other) = (clauses(one), clauses(other));
        pg_sys::predicate_implied_by(one, other, false) && pg_sys::predicate_implied_by(other, one, false)
    }
}

/// The only expression in `text`, which must hold nothing else: no second statement, no clause.
///
/// # Safety
/// Calls the parser: in a transaction only.
unsafe fn sole_expression(text: &CStr) -> *mut pg_sys::Node {
    // SAFETY: nodes as the grammar builds them for the mode of PL/pgSQL expressions, which is a
    // SELECT without the word; each pointer is used as the type that its tag tells.
    unsafe {
        let statements: Vec<*mut pg_sys::RawStmt> =
            members(pg_sys::raw_parser(text.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_PLPGSQL_EXPR));
        let select = match statements.as_slice() {
            [raw] if is_a((**raw).stmt, NodeTag::T_SelectStmt) => (**raw).stmt.cast::<pg_sys::SelectStmt>(),
            _ => refuse_syntax(),
        };
        let s = &*select;
        let has_clauses = !(s.distinctClause.is_null()
            && s.intoClause.is_null()
            && s.fromClause.is_null()
            && s.whereClause.is_null()
            && s.groupClause.is_null()
            && s.havingClause.is_null()
            && s.windowClause.is_null()
            && s.valuesLists.is_null()
            && s.sortClause.is_null()
            && s.limitOffset.is_null()
            && s.limitCount.is_null()
            && s.lockingClause.is_null()
            && s.withClause.is_null())
            || s.op != pg_sys::SetOperation::SETOP_NONE;
        let targets: Vec<*mut pg_sys::ResTarget> = members(s.targetList);
        let target = match targets.as_slice() {
            [target] if !has_clauses => &**target,
            _ => refuse_syntax(),
        };
        if !target.name.is_null() || !target.indirection.is_null() || is_star(target.val) {
            refuse_syntax();
        }
        target.val
    }
}

/// A bare `*`, which the grammar takes for a column in this place.
///
/// # Safety
/// `node` comes from the grammar.
unsafe fn is_star(node: *mut pg_sys::Node) -> bool {
    // SAFETY: a node of the grammar; a ColumnRef has at least one field.
    unsafe {
        if !is_a(node, NodeTag::T_ColumnRef) {
            return false;
        }
        let fields: Vec<*mut pg_sys::Node> = members((*node.cast::<pg_sys::ColumnRef>()).fields);
        fields.first().is_some_and(|&field| is_a(field, NodeTag::T_A_Star))
    }
}

/// # Safety
/// `tree` is one that PostgreSQL has written.
unsafe fn read(tree: &str) -> *mut pg_sys::Node {
    let tree = CString::new(tree).expect("text of PostgreSQL has no NUL");
    // SAFETY: the caller's tree comes from nodeToString or pg_index; the nodes are copies.
    unsafe { pg_sys::stringToNode(tree.as_ptr()).cast() }
}

/// # Safety
/// As for `read`.
unsafe fn clauses(tree: Option<&str>) -> *mut pg_sys::List {
    let Some(tree) = tree else { return std::ptr::null_mut() };
    // SAFETY: see `is_equivalent`; pg_index keeps an implicit-AND list or a single expression.
    unsafe {
        let mut node = read(tree);
        if is_a(node, NodeTag::T_List) {
            node = pg_sys::make_ands_explicit(node.cast()).cast();
        }
        let node = pg_sys::eval_const_expressions(std::ptr::null_mut(), node);
        let node = pg_sys::canonicalize_qual(node.cast(), false);
        pg_sys::make_ands_implicit(node.cast())
    }
}

/// # Safety
/// `node` comes from `read`, or from the planner.
unsafe fn columns_of_node(node: *mut pg_sys::Node) -> Vec<Column> {
    // SAFETY: an index predicate has no aggregates, so the list holds Vars only.
    unsafe {
        members(pg_sys::pull_var_clause(node, 0))
            .into_iter()
            .map(|var: *mut pg_sys::Var| Column { number: (*var).varattno, type_oid: (*var).vartype })
            .collect()
    }
}

/// The members of a list of nodes that are all of type `T`.
///
/// # Safety
/// `list` is null, or a list of pointers to `T`.
unsafe fn members<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: a list of pointers; its cells are one array.
    unsafe {
        let cells = std::slice::from_raw_parts((*list).elements, (*list).length as usize);
        cells.iter().map(|cell| cell.ptr_value.cast()).collect()
    }
}

/// A C string that PostgreSQL has allocated, copied.
///
/// # Safety
/// `string` is one.
unsafe fn owned(string: *const std::ffi::c_char) -> String {
    // SAFETY: the caller's pointer is a NUL-terminated string.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

fn refuse(code: PgSqlErrorCode, message: &'static str) -> ! {
    pgrx::ereport!(ERROR, code, message);
}

fn refuse_syntax() -> ! {
    refuse(PgSqlErrorCode::ERRCODE_SYNTAX_ERROR, "a predicate is one boolean expression and nothing else")
}
