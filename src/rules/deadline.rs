//! Which rows are due, as SQL over one deadline column.
//!
//! The comparison is turned round so that the column stands alone and the deadline index serves it
//! (`created_at <= now - timeout`). Where turning round is not exact (a zone's clock repeats an hour,
//! months differ in length) the index condition is widened and the exact instant is checked behind it.
//!
//! Every statement that contains these expressions runs with `TimeZone` set to [`DeadlineRule::zone`]:
//! that is the zone in which days and months of a timeout are counted.

/// The least and the greatest second since 1970 that `timestamptz` can hold with room for a timeout.
const EPOCH_RANGE_S: (i64, i64) = (-210_000_000_000, 9_000_000_000_000);

/// How far `timezone()` and intervals of days may be off after turning round.
const ZONE_SLACK: &str = "pg_catalog.interval '3 hours'";
/// The same for intervals of months: the 31st + 1 month is the 28th.
const MONTH_SLACK: &str = "pg_catalog.interval '4 days'";

/// How the column says when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Timestamptz,
    /// `timestamp` of this zone.
    Timestamp {
        zone: String,
    },
    /// `date`: the end of that day in this zone.
    Date {
        zone: String,
    },
    /// `integer` or `bigint` since 1970-01-01 00:00 UTC.
    Epoch {
        unit: EpochUnit,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochUnit {
    Seconds,
    Milliseconds,
}

/// An interval in PostgreSQL's three parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeout {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Timeout {
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    fn sql(self) -> String {
        format!(
            "pg_catalog.make_interval(months => {}, days => {}, secs => {}::pg_catalog.float8 / 1000000)",
            self.months, self.days, self.micros
        )
    }
}

/// When the rows of a policy are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineRule {
    /// Quoted where SQL needs it.
    pub column_sql: String,
    pub kind: ColumnKind,
    pub timeout: Timeout,
}

impl DeadlineRule {
    /// The zone that `TimeZone` must be set to while these expressions run.
    pub fn zone(&self) -> &str {
        match &self.kind {
            ColumnKind::Timestamp { zone } | ColumnKind::Date { zone } => zone,
            ColumnKind::Timestamptz | ColumnKind::Epoch { .. } => "UTC",
        }
    }

    /// The column itself as a `timestamptz`, without the timeout.
    pub fn stated(&self) -> String {
        let column = &self.column_sql;
        match &self.kind {
            ColumnKind::Timestamptz => column.clone(),
            ColumnKind::Timestamp { zone } => within_range(
                column,
                "timestamp",
                &format!("pg_catalog.timezone({}, {column})", literal(zone)),
            ),
            ColumnKind::Date { zone } => within_range(
                column,
                "date",
                &format!(
                    "pg_catalog.timezone({}, ({column} OPERATOR(pg_catalog.+) 1)::pg_catalog.timestamp)",
                    literal(zone)
                ),
            ),
            ColumnKind::Epoch { unit } => {
                let (scale, seconds) = match unit {
                    EpochUnit::Seconds => (1, format!("{column}::pg_catalog.float8")),
                    EpochUnit::Milliseconds => {
                        (1000, format!("({column}::pg_catalog.float8 OPERATOR(pg_catalog./) 1000)"))
                    }
                };
                let (least, greatest) = EPOCH_RANGE_S;
                format!(
                    "CASE WHEN {column} OPERATOR(pg_catalog.<) '{}'::pg_catalog.int8 THEN pg_catalog.timestamptz '-infinity' \
                     WHEN {column} OPERATOR(pg_catalog.>) '{}'::pg_catalog.int8 THEN pg_catalog.timestamptz 'infinity' \
                     ELSE pg_catalog.to_timestamp({seconds}) END",
                    least * scale,
                    greatest * scale
                )
            }
        }
    }

    /// The deadline: the column and the timeout, as a `timestamptz`.
    pub fn instant(&self) -> String {
        let stated = self.stated();
        if self.timeout.is_zero() {
            return stated;
        }
        format!(
            "CASE WHEN {stated} OPERATOR(pg_catalog.>) pg_catalog.timestamptz '290000-01-01 00:00:00+00' THEN pg_catalog.timestamptz 'infinity' \
             ELSE ({stated}) OPERATOR(pg_catalog.+) {} END",
            self.timeout.sql()
        )
    }

    /// `floor <= deadline <= now`; both are SQL expressions of type `timestamptz`, `now` finite.
    pub fn is_due(&self, floor: &str, now: &str) -> String {
        let column = &self.column_sql;
        let mut sql = format!(
            "{column} OPERATOR(pg_catalog.>=) {} AND {column} OPERATOR(pg_catalog.<=) {}",
            self.turned_round(floor, Bound::Lower),
            self.turned_round(now, Bound::Upper),
        );
        if !self.is_exact() {
            let instant = self.instant();
            sql += &format!(
                " AND ({instant}) OPERATOR(pg_catalog.>=) {floor} AND ({instant}) OPERATOR(pg_catalog.<=) {now}"
            );
        }
        sql
    }

    /// `deadline > now`, for finding the next one in index order.
    pub fn is_later(&self, now: &str) -> String {
        let column = &self.column_sql;
        if self.is_exact() {
            return format!("{column} OPERATOR(pg_catalog.>) {}", self.turned_round(now, Bound::Upper));
        }
        format!(
            "{column} OPERATOR(pg_catalog.>=) {} AND ({}) OPERATOR(pg_catalog.>) {now}",
            self.turned_round(now, Bound::Lower),
            self.instant()
        )
    }

    /// Whether the turned-round comparison alone decides.
    fn is_exact(&self) -> bool {
        let is_fixed_length = self.timeout.months == 0 && (self.timeout.days == 0 || self.zone() == "UTC");
        is_fixed_length && matches!(self.kind, ColumnKind::Timestamptz | ColumnKind::Epoch { .. })
    }

    /// `instant` minus the timeout, in the column's own type, widened where that is not exact.
    fn turned_round(&self, instant: &str, bound: Bound) -> String {
        let widen = |sql: String, slack: &str| match bound {
            Bound::Lower => format!("({sql} OPERATOR(pg_catalog.-) {slack})"),
            Bound::Upper => format!("({sql} OPERATOR(pg_catalog.+) {slack})"),
        };
        let mut sql = instant.to_owned();
        if !self.timeout.is_zero() {
            sql = format!("({sql} OPERATOR(pg_catalog.-) {})", self.timeout.sql());
        }
        if self.timeout.months != 0 {
            sql = widen(sql, MONTH_SLACK);
        } else if self.timeout.days != 0 && self.zone() != "UTC" {
            sql = widen(sql, ZONE_SLACK);
        } else if bound == Bound::Lower && !self.is_exact() {
            // Upper needs none: PostgreSQL reads a repeated hour as the later one.
            sql = widen(sql, ZONE_SLACK);
        }
        match &self.kind {
            ColumnKind::Timestamptz => sql,
            ColumnKind::Timestamp { zone } => format!("pg_catalog.timezone({}, {sql})", literal(zone)),
            ColumnKind::Date { zone } => format!(
                "(pg_catalog.timezone({}, {sql})::pg_catalog.date OPERATOR(pg_catalog.-) 1)",
                literal(zone)
            ),
            ColumnKind::Epoch { unit } => {
                let scale = match unit {
                    EpochUnit::Seconds => 1,
                    EpochUnit::Milliseconds => 1000,
                };
                let round = match bound {
                    Bound::Lower => "pg_catalog.ceil",
                    Bound::Upper => "pg_catalog.floor",
                };
                format!(
                    "CASE WHEN {sql} OPERATOR(pg_catalog.<) pg_catalog.timestamptz '4700-01-01 00:00:00+00 BC' \
                     THEN '-9223372036854775808'::pg_catalog.int8 \
                     ELSE {round}(EXTRACT(epoch FROM {sql}) OPERATOR(pg_catalog.*) {scale})::pg_catalog.int8 END"
                )
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Lower,
    Upper,
}

/// `inner`, or an infinity where `timestamptz` could not hold it.
fn within_range(column: &str, type_name: &str, inner: &str) -> String {
    format!(
        "CASE WHEN {column} OPERATOR(pg_catalog.<) pg_catalog.{type_name} '4700-01-01 BC' THEN pg_catalog.timestamptz '-infinity' \
         WHEN {column} OPERATOR(pg_catalog.>) pg_catalog.{type_name} '290000-01-01' THEN pg_catalog.timestamptz 'infinity' \
         ELSE {inner} END"
    )
}

/// A string as an SQL literal.
pub fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
