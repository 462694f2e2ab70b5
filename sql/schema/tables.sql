-- The tables of schema expiry. They are written only through the functions; row security shows each
-- user the rows of the policies that he may act for (grants.sql).

COMMENT ON SCHEMA @extschema@ IS 'pg_expiry: cancels rows at their deadline. Its functions, tables and views.';

CREATE TABLE policy (
    name            text PRIMARY KEY CHECK (length(name) > 0 AND octet_length(name) <= 63),
    relation        regclass NOT NULL,
    owner           name NOT NULL,
    deadline        text,
    predicate       text,
    cancel_function text,
    timeout         interval,
    time_zone       text,
    epoch           text,
    channel         text,
    notify          text,
    batch_size      int,
    max_attempts    int,
    retry_delay     interval,
    max_rate        int,
    remind_before   interval[],
    remind_late     boolean,
    starts_at       timestamptz,
    paused          boolean NOT NULL DEFAULT false
);

COMMENT ON TABLE policy IS 'One rule a row: rows of relation that satisfy predicate are due when their deadline has passed; then the cancel function is called. Made by expiry.create_policy(). A parameter that is NULL follows the setting pg_expiry.<parameter>.';
COMMENT ON COLUMN policy.name IS 'Unique in the database, 1 to 63 bytes. Not given: the name of the relation, with its schema if a policy on another relation has that already.';
COMMENT ON COLUMN policy.relation IS 'The table, plain or partitioned, with a primary key or a unique index of NOT NULL columns. Renames are followed.';
COMMENT ON COLUMN policy.owner IS 'The relation''s owner, with whose rights the cancel function runs; kept up to date by the worker.';
COMMENT ON COLUMN policy.deadline IS 'Name of the column that holds the deadline, or a start time if there is a timeout: timestamptz; timestamp or date with time_zone (a date means the end of that day); integer or bigint with epoch. NULL and infinity are never due, -infinity is always.';
COMMENT ON COLUMN policy.predicate IS 'Which rows are pending: a condition on the row''s own columns, as PostgreSQL wants it of a partial index, for it is the predicate of the deadline index.';
COMMENT ON COLUMN policy.cancel_function IS 'Qualified name and argument types, as in public.cancel_order(bigint). Its argument is the row, the key columns, or an array of keys; it returns void, boolean or jsonb, of an array void or the keys that it has cancelled.';
COMMENT ON COLUMN policy.timeout IS 'Added to the deadline column: the wait after a start time, or the grace after a stated deadline. 0 to 1000 years, no part of it negative.';
COMMENT ON COLUMN policy.time_zone IS 'The zone of a timestamp or date column, a name of pg_timezone_names.';
COMMENT ON COLUMN policy.epoch IS 'Unit of an integer column since 1970-01-01 00:00 UTC: s or ms.';
COMMENT ON COLUMN policy.channel IS 'NOTIFY channel, as in LISTEN "channel"; 1 to 63 bytes, which is what PostgreSQL allows.';
COMMENT ON COLUMN policy.notify IS 'row (one notification an event), batch (as many events in one as fit into its 8000 bytes) or off. Events are recorded in any case.';
COMMENT ON COLUMN policy.batch_size IS 'The most rows in one transaction, 1 to 100000. Batches are smaller as long as they take longer than pg_expiry.target_batch_time.';
COMMENT ON COLUMN policy.max_attempts IS 'Failing calls before a row is quarantined, 1 to 1000.';
COMMENT ON COLUMN policy.retry_delay IS 'Wait before the second attempt, 1 ms to 1 day; doubles with each further one up to an hour, by 12.5 % more or less. A declined row is asked again after it, undoubled.';
COMMENT ON COLUMN policy.max_rate IS 'The most rows a second that workers cancel; 0: no limit. CALL expiry.run() does not keep to it.';
COMMENT ON COLUMN policy.remind_before IS 'How long before the deadline a row is reminded, each an event of kind reminder: at most 16 intervals of 1 second to 366 days, without months; {}: no reminders.';
COMMENT ON COLUMN policy.remind_late IS 'Whether rows that begin within an interval already are reminded of it at once; otherwise not at all.';
COMMENT ON COLUMN policy.starts_at IS 'Rows whose deadline is before this instant are left alone; NULL or -infinity: none is. There is no setting for it.';
COMMENT ON COLUMN policy.paused IS 'Set by expiry.pause(), cleared by expiry.resume().';

-- What ties a policy to this database: object numbers that a dump must not carry. A policy without a
-- row here, or with one of another database or cluster, came from a dump, a clone or by replication, and
-- is paused until resumed.
CREATE TABLE binding (
    policy            text PRIMARY KEY,
    database          oid NOT NULL,
    system_identifier bigint NOT NULL,
    server_version    int NOT NULL,
    deadline_column   smallint,
    predicate_tree    text,
    predicate_columns text[],
    function          oid,
    function_owner    oid,
    index             oid,
    index_name        text,
    build_failures    int NOT NULL DEFAULT 0,
    build_failed_at   timestamptz,
    build_error       text
);

COMMENT ON TABLE binding IS 'Internal: object numbers behind the names in expiry.policy, valid in one database: how renames are followed. Not dumped.';
COMMENT ON COLUMN binding.policy IS 'Name of the policy.';
COMMENT ON COLUMN binding.database IS 'The database in which the policy was made or resumed.';
COMMENT ON COLUMN binding.system_identifier IS 'The cluster in which the numbers are valid; pg_upgrade changes it.';
COMMENT ON COLUMN binding.server_version IS 'The major version of PostgreSQL then: an older one and another cluster, that was pg_upgrade.';
COMMENT ON COLUMN binding.deadline_column IS 'Number of the deadline column; NULL if a setting names it.';
COMMENT ON COLUMN binding.predicate_tree IS 'The predicate as PostgreSQL has parsed it; NULL if a setting holds it.';
COMMENT ON COLUMN binding.predicate_columns IS 'Names of the columns in predicate_tree, as the predicate spells them.';
COMMENT ON COLUMN binding.function IS 'The cancel function''s number; NULL if a setting names it.';
COMMENT ON COLUMN binding.function_owner IS 'Who owned the cancel function when the policy was made.';
COMMENT ON COLUMN binding.index IS 'The deadline index that pg_expiry has built, to be dropped with the policy; a row without a policy waits for that.';
COMMENT ON COLUMN binding.index_name IS 'Its name, written down before it is built: an index that PostgreSQL makes anew (REINDEX CONCURRENTLY, another type of a column) keeps its name, not its number.';
COMMENT ON COLUMN binding.build_failures IS 'Builds that failed since the last one that did not.';
COMMENT ON COLUMN binding.build_failed_at IS 'When the last build failed.';
COMMENT ON COLUMN binding.build_error IS 'How the last build failed: SQLSTATE and message.';

CREATE SEQUENCE event_id_seq;
COMMENT ON SEQUENCE event_id_seq IS 'Internal: ids of expiry.event. Dumped, so that ids never begin again.';

CREATE TABLE event (
    id              bigint PRIMARY KEY,
    policy          text NOT NULL,
    owner           oid NOT NULL,
    key             jsonb NOT NULL,
    kind            text NOT NULL,
    deadline        timestamptz,
    stated_deadline timestamptz,
    occurred_at     timestamptz NOT NULL,
    lateness        interval,
    data            jsonb
);

COMMENT ON TABLE event IS 'The durable record of each outcome. Ids become visible in order: who has read up to N has missed nothing below N.';
COMMENT ON COLUMN event.id IS 'Ascending, with gaps; also the idempotency key of consumers.';
COMMENT ON COLUMN event.policy IS 'Name of the policy when it happened. Events outlive their policy.';
COMMENT ON COLUMN event.owner IS 'The role for which it was done: who may act for it, and pg_monitor, may see the event.';
COMMENT ON COLUMN event.key IS 'Key columns by name; 64-bit integers and numerics as JSON strings, which JavaScript would round as numbers.';
COMMENT ON COLUMN event.kind IS 'cancelled; quarantined (its attempts are used up); reminder (the deadline is near); restored (by expiry.restored()). Others may come.';
COMMENT ON COLUMN event.deadline IS 'The instant after which the row was due, timeout included; NULL: no finite one, or kind quarantined.';
COMMENT ON COLUMN event.stated_deadline IS 'The deadline column itself, where the policy adds a timeout; otherwise NULL.';
COMMENT ON COLUMN event.occurred_at IS 'When it happened, by the server''s clock.';
COMMENT ON COLUMN event.lateness IS 'occurred_at minus deadline; negative while the deadline is to come, NULL without one.';
COMMENT ON COLUMN event.data IS 'What a cancel function that returns jsonb returned, or expiry.restored() was given; of a reminder its interval in seconds, as remind_before_s; otherwise NULL.';

CREATE TABLE failure (
    policy          text NOT NULL,
    key             jsonb NOT NULL,
    attempts        int NOT NULL,
    sqlstate        text NOT NULL,
    message         text NOT NULL,
    detail          text,
    hint            text,
    failed_at       timestamptz NOT NULL,
    next_attempt_at timestamptz
);
-- A key may be longer than an index entry may be.
CREATE UNIQUE INDEX failure_policy_key ON failure (policy, md5(key::text));
-- Or a publication of all tables would have its updates refused.
ALTER TABLE failure REPLICA IDENTITY FULL;
CREATE INDEX failure_quarantined ON failure (policy) WHERE next_attempt_at IS NULL;
COMMENT ON INDEX failure_policy_key IS 'One row a policy and key.';
COMMENT ON INDEX failure_quarantined IS 'For the count in expiry.status.';

COMMENT ON TABLE failure IS 'Rows whose cancel function failed and that wait for the next attempt, or are quarantined.';
COMMENT ON COLUMN failure.policy IS 'Name of the policy.';
COMMENT ON COLUMN failure.key IS 'Key columns by name, as in expiry.event.';
COMMENT ON COLUMN failure.attempts IS 'Calls that failed; at max_attempts the row is quarantined.';
COMMENT ON COLUMN failure.sqlstate IS 'SQLSTATE of the last failure: what the cancel function raised; 57014 after pg_expiry.cancel_timeout; 2F000 if it left the row due.';
COMMENT ON COLUMN failure.message IS 'Message of the last failure.';
COMMENT ON COLUMN failure.detail IS 'Detail of the last failure, if it had one.';
COMMENT ON COLUMN failure.hint IS 'Hint of the last failure, if it had one.';
COMMENT ON COLUMN failure.failed_at IS 'When the last failure happened.';
COMMENT ON COLUMN failure.next_attempt_at IS 'When it is tried again; NULL: quarantined, waits for expiry.retry().';

-- What workers know about a policy, written at most once a second; not dumped.
CREATE TABLE progress (
    policy                 text PRIMARY KEY,
    state                  text NOT NULL DEFAULT 'active',
    reason                 text,
    index_state            text NOT NULL DEFAULT 'missing',
    cancelled              bigint NOT NULL DEFAULT 0,
    declined               bigint NOT NULL DEFAULT 0,
    failed                 bigint NOT NULL DEFAULT 0,
    withheld_notifications bigint NOT NULL DEFAULT 0,
    withheld_after         bigint,
    alerts                 text[] NOT NULL DEFAULT '{}',
    lateness_max_ms        double precision,
    lateness_counts        bigint[] NOT NULL DEFAULT '{}',
    stats_since            timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error             text,
    last_run               timestamptz
) WITH (fillfactor = 50);

COMMENT ON TABLE progress IS 'Internal: counters and state of each policy, written by workers at most once a second; look at expiry.status. Not dumped.';
COMMENT ON COLUMN progress.policy IS 'Name of the policy.';
COMMENT ON COLUMN progress.state IS 'active, tripped or stopped.';
COMMENT ON COLUMN progress.reason IS 'Why it is not active; otherwise NULL.';
COMMENT ON COLUMN progress.index_state IS 'missing, building, invalid or valid.';
COMMENT ON COLUMN progress.cancelled IS 'Rows cancelled since stats_since.';
COMMENT ON COLUMN progress.declined IS 'Calls that declined since stats_since.';
COMMENT ON COLUMN progress.failed IS 'Calls that failed since stats_since.';
COMMENT ON COLUMN progress.withheld_notifications IS 'Events that were recorded but not notified since stats_since.';
COMMENT ON COLUMN progress.withheld_after IS 'Until listeners have been told to catch up: the last event before those that were not notified.';
COMMENT ON COLUMN progress.alerts IS 'What pg_expiry.alert_channel was told of and has not heard to be over: tripped, stopped, lagging, quarantined.';
COMMENT ON COLUMN progress.lateness_max_ms IS 'The greatest lateness since stats_since.';
COMMENT ON COLUMN progress.lateness_counts IS 'Rows by bucket of lateness; bucket n ends at 2^(n-4) ms.';
COMMENT ON COLUMN progress.stats_since IS 'Since when is counted: the policy''s first run, or the last expiry.reset_stats().';
COMMENT ON COLUMN progress.last_error IS 'The last failure: SQLSTATE and message.';
COMMENT ON COLUMN progress.last_run IS 'When a worker last looked.';

-- How far the reminders of each interval have come: deadlines up to there have had theirs, or have come so late
-- that they get none. Not dumped.
CREATE TABLE reminder (
    policy        text NOT NULL,
    remind_before interval NOT NULL,
    reminded_to   timestamptz NOT NULL,
    PRIMARY KEY (policy, remind_before)
) WITH (fillfactor = 50);

COMMENT ON TABLE reminder IS 'Internal: how far the reminders of each policy and interval have come. Not dumped.';
COMMENT ON COLUMN reminder.policy IS 'Name of the policy.';
COMMENT ON COLUMN reminder.remind_before IS 'The interval, one of the policy''s remind_before.';
COMMENT ON COLUMN reminder.reminded_to IS 'Deadlines up to this one have been looked at; those that turn up below are reminded only with remind_late.';

-- Which reminders were given, until the deadline has passed.
CREATE TABLE reminded (
    policy        text NOT NULL,
    remind_before interval NOT NULL,
    deadline      timestamptz NOT NULL,
    key           jsonb NOT NULL
);
CREATE UNIQUE INDEX reminded_once ON reminded (policy, remind_before, deadline, md5(key::text));
COMMENT ON INDEX reminded_once IS 'One reminder a row, interval and deadline.';
ALTER TABLE reminded REPLICA IDENTITY FULL;

COMMENT ON TABLE reminded IS 'Internal: reminders that were given, so that none is given twice; forgotten when the deadline has passed. Not dumped.';
COMMENT ON COLUMN reminded.policy IS 'Name of the policy.';
COMMENT ON COLUMN reminded.remind_before IS 'The interval.';
COMMENT ON COLUMN reminded.deadline IS 'The deadline that was reminded of.';
COMMENT ON COLUMN reminded.key IS 'Key columns by name, as in expiry.event.';

CREATE TABLE consumer (
    name       text PRIMARY KEY CHECK (length(name) > 0 AND octet_length(name) <= 63),
    owner      oid NOT NULL,
    policy     text,
    acked      bigint NOT NULL,
    fetched    bigint NOT NULL,
    fetched_at timestamptz,
    acked_at   timestamptz
) WITH (fillfactor = 50);

COMMENT ON TABLE consumer IS 'Internal: readers of events whose place the server keeps; look at expiry.consumers. Not dumped.';
COMMENT ON COLUMN consumer.name IS 'Unique in the database; at most 63 bytes.';
COMMENT ON COLUMN consumer.owner IS 'The role that subscribed.';
COMMENT ON COLUMN consumer.policy IS 'The policy whose events it reads; NULL: all that the reader may see.';
COMMENT ON COLUMN consumer.acked IS 'The last event that it has acknowledged.';
COMMENT ON COLUMN consumer.fetched IS 'The last event that it was given.';
COMMENT ON COLUMN consumer.fetched_at IS 'When it last fetched.';
COMMENT ON COLUMN consumer.acked_at IS 'When it last acknowledged.';

-- What a dropped table has left is a number that would be another table's in the copy.
SELECT pg_catalog.pg_extension_config_dump('policy',
    'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) relation)');
SELECT pg_catalog.pg_extension_config_dump('failure', '');
SELECT pg_catalog.pg_extension_config_dump('event_id_seq', '');
