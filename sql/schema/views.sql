-- What one looks at: the rows that are due, the state of each policy, and how late it is.

CREATE FUNCTION preview(name text, max_rows bigint DEFAULT 100, OUT key jsonb, OUT deadline timestamptz, OUT overdue interval)
    RETURNS SETOF record
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'preview_wrapper';
COMMENT ON FUNCTION preview(text, bigint) IS
    'The rows of a policy that are due now, earliest deadline first; touches nothing, and works for paused and restored policies too. Errors: 42704 unknown policy; 42501 not its owner; 22023 negative max_rows; those of create_policy() if something that it needs is gone.';

CREATE FUNCTION probe(
    name text,
    OUT state text, OUT reason text, OUT backlog text, OUT oldest_overdue interval, OUT next_deadline timestamptz,
    OUT index_state text
) RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'probe_wrapper';
COMMENT ON FUNCTION probe(text) IS 'Internal, for the view expiry.status: what it shows of a policy beyond its counters; no row if its relation has been dropped.';

CREATE VIEW status WITH (security_invoker = true) AS
    SELECT p.name,
           CASE WHEN s.state <> 'active' THEN s.state ELSE coalesce(g.state, 'active') END AS state,
           CASE WHEN s.state <> 'active' THEN s.reason ELSE g.reason END AS reason,
           s.backlog, s.oldest_overdue, s.next_deadline, s.index_state,
           coalesce(g.cancelled, 0) AS cancelled,
           coalesce(g.declined, 0) AS declined,
           coalesce(g.failed, 0) AS failed,
           (SELECT count(*) FROM (SELECT FROM @extschema@.failure f
                WHERE f.policy = p.name AND f.next_attempt_at IS NULL LIMIT 10001) q) AS quarantined,
           coalesce(g.withheld_notifications, 0) AS withheld_notifications,
           l.p50 AS lateness_p50_ms, l.p95 AS lateness_p95_ms, l.p99 AS lateness_p99_ms,
           g.lateness_max_ms, g.last_error, g.last_run, g.stats_since
    FROM @extschema@.policy p
    CROSS JOIN LATERAL @extschema@.probe(p.name) s
    LEFT JOIN @extschema@.progress g ON g.policy = p.name
    LEFT JOIN LATERAL (
        SELECT least(min(b.bound) FILTER (WHERE b.seen >= b.total * 0.50), g.lateness_max_ms) AS p50,
               least(min(b.bound) FILTER (WHERE b.seen >= b.total * 0.95), g.lateness_max_ms) AS p95,
               least(min(b.bound) FILTER (WHERE b.seen >= b.total * 0.99), g.lateness_max_ms) AS p99
        FROM (SELECT 2.0 ^ (u.n - 5)::float8 AS bound, sum(u.rows) OVER (ORDER BY u.n) AS seen, sum(u.rows) OVER () AS total
              FROM unnest(g.lateness_counts) WITH ORDINALITY u(rows, n)) b
        WHERE b.total > 0) l ON true;
COMMENT ON VIEW status IS 'How each policy is that you may act for; members of pg_monitor see all. Reads a bounded part of the deadline index, and waits for no lock.';
COMMENT ON COLUMN status.name IS 'Name of the policy.';
COMMENT ON COLUMN status.state IS 'active; paused (by expiry.pause()); restored (from a dump or a cloned database, waits for expiry.resume()); tripped (everything fails, it tries again by and by); stopped (something that it needs is gone); indexing (its deadline index is being built); disabled (by pg_expiry.enabled).';
COMMENT ON COLUMN status.reason IS 'Why it is tripped or stopped, with the SQLSTATE; otherwise NULL.';
COMMENT ON COLUMN status.backlog IS 'Rows that are due now, counted to 10000, as 10000+ beyond that; NULL while that cannot be told without reading the whole table.';
COMMENT ON COLUMN status.oldest_overdue IS 'How long ago the earliest deadline of the backlog has passed; NULL: nothing is due.';
COMMENT ON COLUMN status.next_deadline IS 'The next deadline to come; NULL: none.';
COMMENT ON COLUMN status.index_state IS 'Of the deadline index: missing, building, invalid or valid.';
COMMENT ON COLUMN status.cancelled IS 'Rows cancelled since stats_since.';
COMMENT ON COLUMN status.declined IS 'Calls that declined since stats_since.';
COMMENT ON COLUMN status.failed IS 'Calls that failed since stats_since.';
COMMENT ON COLUMN status.quarantined IS 'Rows that have used up their attempts, see expiry.failure; counted to 10001, which stands for more than 10000.';
COMMENT ON COLUMN status.withheld_notifications IS 'Events since stats_since that were recorded but not notified, because the server''s notification queue was filling up.';
COMMENT ON COLUMN status.lateness_p50_ms IS 'Half of the rows were cancelled no later than this after their deadline, in milliseconds; rounded up to a power of two. NULL: none was cancelled since stats_since.';
COMMENT ON COLUMN status.lateness_p95_ms IS 'The same for 95 % of the rows.';
COMMENT ON COLUMN status.lateness_p99_ms IS 'The same for 99 % of the rows.';
COMMENT ON COLUMN status.lateness_max_ms IS 'The greatest lateness in milliseconds.';
COMMENT ON COLUMN status.last_error IS 'The last failure: SQLSTATE and message.';
COMMENT ON COLUMN status.last_run IS 'When a worker last looked.';
COMMENT ON COLUMN status.stats_since IS 'Since when is counted: the policy''s first run, or the last expiry.reset_stats().';

CREATE VIEW lateness WITH (security_invoker = true) AS
    SELECT g.policy, 2.0 ^ (u.n - 5)::float8 AS bucket, u.count,
           repeat('#', ceil(40.0 * u.count / max(u.count) OVER (PARTITION BY g.policy))::int) AS bar
    FROM @extschema@.progress g CROSS JOIN LATERAL unnest(g.lateness_counts) WITH ORDINALITY u(count, n)
    WHERE u.count > 0
    ORDER BY g.policy, u.n;
COMMENT ON VIEW lateness IS 'How late the rows of each policy were cancelled, as a histogram to look at.';
COMMENT ON COLUMN lateness.policy IS 'Name of the policy.';
COMMENT ON COLUMN lateness.bucket IS 'The upper bound in milliseconds; the lower one is half of it.';
COMMENT ON COLUMN lateness.count IS 'Rows cancelled that late since the policy''s stats_since in expiry.status.';
COMMENT ON COLUMN lateness.bar IS 'The count as a bar; the longest of a policy has 40 characters.';
