//! The SQL of deadlines against the plain definition, evaluated by a server: around every change of the
//! clock and every end of a month, whatever the column's type, its zone and the timeout.

use pg_expiry_tests::Db;
use pg_expiry_tests::postgres::Client;

use super::decisions::deadline::{ColumnKind, DeadlineRule, EpochUnit, Timeout};

const ZONES: [&str; 6] = [
    "Europe/Berlin",
    "America/New_York",
    "Asia/Tokyo",
    // The clock is set at midnight: there a day ends twice, or begins an hour late.
    "Africa/Cairo",
    "America/Sao_Paulo",
    // By half an hour.
    "Australia/Lord_Howe",
];

const MINUTE_US: i64 = 60_000_000;

const TIMEOUTS: [Timeout; 5] = [
    Timeout { months: 0, days: 0, micros: 0 },
    Timeout { months: 0, days: 0, micros: 30 * MINUTE_US },
    Timeout { months: 0, days: 1, micros: 0 },
    Timeout { months: 1, days: 0, micros: 0 },
    Timeout { months: 1, days: 1, micros: 90 * MINUTE_US + 1 },
];

/// A deadline column, and the plain definition of what it says.
struct Column {
    kind: ColumnKind,
    sql_type: &'static str,
    /// From a local time `l` of the zone.
    from_local: String,
    /// To a timestamptz.
    stated: String,
}

impl Column {
    fn all(zone: &str) -> [Column; 6] {
        let kinds = ["timestamp", "date", "timestamptz", "epoch", "int epoch", "ms epoch"];
        kinds.map(|kind| Column::new(kind, zone))
    }

    fn new(kind: &str, zone: &str) -> Column {
        let column = |kind, sql_type, from_local: &str, stated: &str| Column {
            kind,
            sql_type,
            from_local: from_local.replace("$zone", &format!("'{zone}'")),
            stated: stated.replace("$zone", &format!("'{zone}'")),
        };
        let named = || zone.to_owned();
        match kind {
            "timestamp" => {
                column(ColumnKind::Timestamp { zone: named() }, "timestamp", "l", "(at AT TIME ZONE $zone)")
            }
            "date" => column(
                ColumnKind::Date { zone: named() },
                "date",
                "l::date",
                "((at + 1)::timestamp AT TIME ZONE $zone)",
            ),
            "timestamptz" => column(ColumnKind::Timestamptz, "timestamptz", "l AT TIME ZONE $zone", "at"),
            "epoch" | "int epoch" => column(
                ColumnKind::Epoch { unit: EpochUnit::Seconds },
                if kind == "epoch" { "bigint" } else { "int" },
                "extract(epoch FROM l AT TIME ZONE $zone)",
                "to_timestamp(at)",
            ),
            "ms epoch" => column(
                ColumnKind::Epoch { unit: EpochUnit::Milliseconds },
                "bigint",
                "extract(epoch FROM l AT TIME ZONE $zone) * 1000",
                "(timestamptz 'epoch' + at * interval '1 ms')",
            ),
            _ => unreachable!("{kind}"),
        }
    }

    fn rule(&self, timeout: Timeout) -> DeadlineRule {
        DeadlineRule { column_sql: "r.at".into(), kind: self.kind.clone(), timeout }
    }
}

/// Local times about the zone's changes of the clock and about the ends of months, in `local(l)`.
fn gather_local_times(client: &mut Client, zone: &str) {
    let sql = format!(
        "CREATE TABLE local AS
         WITH change AS (
             SELECT t FROM generate_series(timestamptz '2018-01-01', '2018-12-31', '30 min') t
             WHERE timezone('{zone}', t) - timezone('{zone}', t - interval '30 min') <> interval '30 min'
             UNION ALL
             SELECT t FROM generate_series(timestamptz '2024-01-01', '2024-12-31', '30 min') t
             WHERE timezone('{zone}', t) - timezone('{zone}', t - interval '30 min') <> interval '30 min'),
         near AS (
             SELECT timezone('{zone}', t - interval '2 hours 30 min') + n * interval '15 min' + off AS l
             FROM change, generate_series(0, 20) n, unnest('{{-1 us, 0}}'::interval[]) off),
         month AS (
             SELECT m + d * interval '1 day' + at AS l
             FROM unnest('{{2024-02-01, 2024-03-01, 2024-05-01, 2023-03-01, 2023-11-01}}'::timestamp[]) m,
                  generate_series(-4, 1) d, unnest('{{0, 02:30, 23:59:59.999999}}'::interval[]) at)
         SELECT DISTINCT l FROM (TABLE near UNION ALL TABLE month) x"
    );
    client.batch_execute(&sql).expect("local times");
    let count: i64 = client.query_one("SELECT count(*) FROM local", &[]).unwrap().get(0);
    assert!(count >= if zone == "Asia/Tokyo" { 90 } else { 150 }, "only {count} in {zone}");
}

fn interval(timeout: Timeout) -> String {
    format!("interval '{} months {} days {} us'", timeout.months, timeout.days, timeout.micros)
}

/// What the rule's SQL says for each row, floor and now, where that is not what it should.
fn differences(client: &mut Client, column: &Column, timeout: Timeout) -> Vec<String> {
    let rule = column.rule(timeout);
    let plain = format!("{} + {}", column.stated, interval(timeout));
    let sql = format!(
        "SET TimeZone = '{}';
         DROP TABLE IF EXISTS r;
         CREATE TABLE r AS SELECT at, {plain} AS plain
         FROM (SELECT DISTINCT ({})::{} AS at FROM local) x",
        rule.zone(),
        column.from_local,
        column.sql_type
    );
    client.batch_execute(&sql).expect("the rows");
    let sql = format!(
        "WITH off AS (
             SELECT s * o AS o FROM unnest('{{1 us, 1 ms, 1 s, 30 min, 1 h, 90 min, 3 h, 1 day, 4 days 2 h}}'::interval[]) o,
                    unnest('{{-1, 1}}'::int[]) s
             UNION ALL SELECT '0'),
         asked AS (
             SELECT r.at, r.plain, f.floor, n.now
             FROM r, off CROSS JOIN LATERAL (VALUES
                 (timestamptz '-infinity', r.plain + o), (r.plain + o, r.plain), (r.plain + o, r.plain + interval '40 days')
             ) AS x(floor, now), LATERAL (SELECT x.floor) f, LATERAL (SELECT x.now) n),
         said AS (
             SELECT r.*, ({instant}) AS instant, ({is_due}) AS is_due, ({is_later}) AS is_later
             FROM asked r)
         SELECT format('%s (%s, %s): instant %s, is_due %s, is_later %s', at, floor, now, instant, is_due, is_later)
         FROM said
         WHERE instant <> plain OR is_due <> (plain >= floor AND plain <= now) OR is_later <> (plain > now)
            OR (is_due OR is_later) IS NULL
         LIMIT 3",
        instant = rule.instant(),
        is_due = rule.is_due("r.floor", "r.now"),
        is_later = rule.is_later("r.now"),
    );
    let rows = client.query(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

fn assert_rules_hold_in(zone: &str, kinds: impl Fn(&Column) -> bool) {
    let db = Db::new();
    let mut client = db.connect();
    gather_local_times(&mut client, zone);
    let mut wrong = Vec::new();
    for column in Column::all(zone).iter().filter(|column| kinds(column)) {
        for timeout in TIMEOUTS {
            let differences = differences(&mut client, column, timeout);
            wrong.extend(differences.iter().map(|what| format!("{:?} + {timeout:?}: {what}", column.kind)));
        }
    }
    assert!(wrong.is_empty(), "{zone}:\n{}", wrong.join("\n"));
}

/// R13, R14, R47.
#[test]
fn zoneless_columns_are_due_at_their_zones_instant() {
    for zone in ZONES {
        let is_zoneless =
            |kind: &ColumnKind| matches!(kind, ColumnKind::Timestamp { .. } | ColumnKind::Date { .. });
        assert_rules_hold_in(zone, |column| is_zoneless(&column.kind));
    }
}

#[test]
fn instants_are_due_at_their_instant() {
    assert_rules_hold_in("America/New_York", |column| {
        matches!(column.kind, ColumnKind::Timestamptz | ColumnKind::Epoch { .. })
    });
}

/// R03, R45: NULL and what is beyond the end of time are never due, what is before its beginning always
/// is; and nothing of it is an error.
#[test]
fn ends_of_time_are_no_error() {
    let db = Db::new();
    let mut client = db.connect();
    client.batch_execute("CREATE TABLE local (l timestamp)").unwrap();
    let never = [
        ("timestamp", "NULL, infinity, 294276-12-31 23:59:59.999999"),
        ("date", "NULL, infinity, 5874897-12-31, 294276-12-31"),
        ("timestamptz", "NULL, infinity, 294276-12-31 23:59:59.999999+00"),
        ("epoch", "NULL, 9223372036854775807, 9000000000001, 253402300800"),
        ("int epoch", "NULL, 2147483647"),
        ("ms epoch", "NULL, 9223372036854775807, 9000000000000001, 253402300800000"),
    ];
    let always = [
        ("timestamp", "-infinity, 4713-01-01 00:00:00 BC"),
        ("date", "-infinity, 4713-01-01 BC"),
        ("timestamptz", "-infinity, 4713-01-01 00:00:00+00 BC"),
        ("epoch", "-9223372036854775808, -210000000001, 0"),
        ("int epoch", "-2147483648, -1, 0"),
        ("ms epoch", "-9223372036854775808, -210000000000001, 0"),
    ];
    for (rows, are_due) in [(never, false), (always, true)] {
        for (kind, values) in rows {
            for (zone, timeout) in ZONES.iter().flat_map(|zone| TIMEOUTS.map(|timeout| (zone, timeout))) {
                let column = Column::new(kind, zone);
                let rule = column.rule(timeout);
                let sql = format!(
                    "SET TimeZone = '{}';
                     SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard';
                     SELECT string_agg(at::text, ', ') FROM unnest('{{{values}}}'::{}[]) AS r(at)
                     WHERE coalesce({}, false) <> {are_due}
                        OR coalesce({}, false) <> ({are_due} IS FALSE AND at IS NOT NULL)",
                    rule.zone(),
                    column.sql_type,
                    rule.is_due("timestamptz '-infinity'", "timestamptz '2037-06-01 12:00+00'"),
                    rule.is_later("timestamptz '2037-06-01 12:00+00'"),
                );
                let rows = client.simple_query(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
                let wrong = rows.iter().find_map(|message| match message {
                    pg_expiry_tests::postgres::SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                });
                assert_eq!(wrong, None, "{kind} in {zone} + {timeout:?} (due: {are_due})");
            }
        }
    }
}

/// No scan of a big table, and none of its index from one end to the other.
#[test]
fn deadline_index_serves_both_bounds() {
    let db = Db::new();
    let mut client = db.connect();
    client
        .batch_execute(
            "SET plan_cache_mode = force_generic_plan;
             SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off",
        )
        .unwrap();
    for column in Column::all("Europe/Berlin") {
        for timeout in TIMEOUTS {
            let rule = column.rule(timeout);
            let sql = format!(
                "DROP TABLE IF EXISTS orders;
                 CREATE TABLE orders (at {}, status text);
                 CREATE INDEX ON orders (at) WHERE status = 'pending';
                 DEALLOCATE ALL;
                 PREPARE claim (timestamptz, timestamptz) AS SELECT FROM orders r
                     WHERE status = 'pending' AND {} ORDER BY r.at LIMIT 10 FOR UPDATE SKIP LOCKED;
                 PREPARE next (timestamptz) AS SELECT FROM orders r
                     WHERE status = 'pending' AND {} ORDER BY r.at LIMIT 1",
                column.sql_type,
                rule.is_due("$1", "$2"),
                rule.is_later("$1"),
            );
            client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            let mut plan = |execute: &str| -> String {
                let rows =
                    client.query(&format!("EXPLAIN (COSTS OFF) EXECUTE {execute}"), &[]).expect("EXPLAIN");
                rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
            };
            let condition = |plan: &str| -> String {
                let line = plan.lines().find_map(|line| line.trim().strip_prefix("Index Cond: "));
                line.unwrap_or_else(|| panic!("no index condition:\n{plan}")).to_owned()
            };
            let claim = plan("claim('-infinity', now())");
            assert!(condition(&claim).contains("at >= ") && condition(&claim).contains("at <= "), "{claim}");
            assert!(!claim.contains("Sort"), "{claim}");
            let next = plan("next(now())");
            assert!(condition(&next).contains("at >"), "{next}");
            assert!(!next.contains("Sort"), "{next}");
        }
    }
}

/// R13: an order made in summer time with a deadline in winter time, a local time that never was, and one
/// that was twice.
#[test]
fn local_time_means_its_own_days_offset() {
    let db = Db::new();
    let mut client = db.connect();
    let cases = [
        ("Europe/Berlin", "2026-10-26 23:59", "2026-10-26 22:59:00+00"),
        ("America/New_York", "2026-03-08 02:30", "2026-03-08 07:30:00+00"),
        ("America/New_York", "2026-11-01 01:30", "2026-11-01 06:30:00+00"),
        ("Africa/Cairo", "2024-04-26 00:30", "2024-04-25 22:30:00+00"),
        ("Africa/Cairo", "2024-10-31 23:30", "2024-10-31 21:30:00+00"),
        ("Asia/Tokyo", "2026-03-08 02:30", "2026-03-07 17:30:00+00"),
    ];
    for (zone, local, expected) in cases {
        let rule = Column::new("timestamp", zone).rule(TIMEOUTS[0]);
        for session_zone in ["UTC", "Asia/Tokyo", "America/Los_Angeles"] {
            client.batch_execute(&format!("SET TimeZone = '{session_zone}'")).unwrap();
            let sql = format!(
                "SELECT {} = timestamptz '{expected}' FROM (SELECT timestamp '{local}' AS at) r",
                rule.instant()
            );
            assert!(client.query_one(&sql, &[]).unwrap().get::<_, bool>(0), "{local} in {zone}");
        }
    }
}
