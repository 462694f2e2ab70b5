-- The launcher's and the workers' side: waking, stopping, looking at them.

CREATE FUNCTION wake() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'expiry_wake_wrapper';
COMMENT ON FUNCTION wake() IS 'When this transaction commits, the workers of this database look at the deadlines at once; for deadlines nearer than pg_expiry.lookahead. Anybody may call it.';

CREATE FUNCTION stop_workers() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'expiry_stop_workers_wrapper';
COMMENT ON FUNCTION stop_workers() IS 'Ends the workers of this database at once, not at the commit, waits until they are gone, and keeps them away until start_workers() or a restart of the server. For the database''s owner. Errors: 42501 not its owner; 55000 pg_expiry is not preloaded; 53400 too many databases; 55006 workers have not ended yet.';

CREATE FUNCTION start_workers() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'expiry_start_workers_wrapper';
COMMENT ON FUNCTION start_workers() IS 'Lets workers into this database again, at once, after stop_workers(). For the database''s owner. Errors: 42501 not its owner; 55000 pg_expiry is not preloaded; 53400 too many databases.';

CREATE FUNCTION list_workers(
    OUT database text, OUT owner text, OUT pid int, OUT state text, OUT policies int,
    OUT started_at timestamptz, OUT last_pass timestamptz
) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL RESTRICTED ROWS 10 AS 'MODULE_PATHNAME', 'expiry_workers_wrapper';
COMMENT ON FUNCTION list_workers() IS 'Internal: what the view expiry.workers shows.';

CREATE VIEW workers WITH (security_barrier = true) AS
    SELECT database, owner, pid, state, policies, started_at, last_pass FROM @extschema@.list_workers();
COMMENT ON VIEW workers IS 'The workers of the cluster, one for each database and owner of policies: those of the roles that you may act for; members of pg_monitor see all.';
COMMENT ON COLUMN workers.database IS 'Name of the database.';
COMMENT ON COLUMN workers.owner IS 'The role whose policies the worker serves.';
COMMENT ON COLUMN workers.pid IS 'The process, as in pg_stat_activity; NULL when there is none.';
COMMENT ON COLUMN workers.state IS 'running; assisting (a further one for a policy with a backlog); starting; leaving; waiting (for its turn); restarting (soon, it has died); no slot (max_worker_processes are in use); stopped (by stop_workers); held off (another statement needs the database).';
COMMENT ON COLUMN workers.policies IS 'How many policies it serves.';
COMMENT ON COLUMN workers.started_at IS 'When the process started.';
COMMENT ON COLUMN workers.last_pass IS 'When a worker of this owner last looked for due rows.';

-- The launcher hears of the extension when CREATE EXTENSION commits; without preload the user does, in a
-- notice, which CREATE EXTENSION would keep back. It stays: dropping it would start event triggers of the user.
CREATE FUNCTION announce() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'expiry_announce_wrapper';
COMMENT ON FUNCTION announce() IS 'Internal: tells the launcher, at the commit, that this database has the extension; CREATE EXTENSION has called it.';
REVOKE EXECUTE ON FUNCTION announce() FROM PUBLIC;
SET LOCAL client_min_messages = notice;
SELECT @extschema@.announce();
SET LOCAL client_min_messages = warning;
