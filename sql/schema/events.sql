-- Reading events. Both run with the caller's rights: row security decides what he sees.

CREATE FUNCTION events_after(id bigint, max_rows int DEFAULT 1000, name text DEFAULT NULL)
    RETURNS SETOF event
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF events_after.id IS NULL OR events_after.id < 0 THEN
        RAISE EXCEPTION 'event id must not be negative or null'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Begin with 0, then pass the last id that you have read.';
    END IF;
    IF events_after.max_rows IS NULL OR events_after.max_rows < 0 THEN
        RAISE EXCEPTION 'max_rows must not be negative or null' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF events_after.name IS NOT NULL AND NOT EXISTS (SELECT FROM @extschema@.policy p WHERE p.name = events_after.name) THEN
        RAISE EXCEPTION 'policy "%" does not exist', events_after.name
            USING ERRCODE = 'undefined_object', HINT = 'SELECT name FROM expiry.policy lists the policies that you may act for.';
    END IF;
    RETURN QUERY
        SELECT e.* FROM @extschema@.event e
        WHERE e.id > events_after.id AND (events_after.name IS NULL OR e.policy = events_after.name)
        ORDER BY e.id LIMIT events_after.max_rows;
    IF NOT FOUND THEN
        PERFORM @extschema@.refuse_future_event(events_after.id);
    END IF;
END
$$;

COMMENT ON FUNCTION events_after(bigint, int, text) IS
    'The events with a greater id, in order, at most max_rows; of one policy, or with NULL of all that you may act for. Whoever has read up to N has missed nothing below N. Errors: 22023 negative id or max_rows, or an id that no event has had yet; 42704 unknown policy.';

CREATE FUNCTION fetch_events(consumer text, max_rows int DEFAULT 1000)
    RETURNS SETOF event
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place bigint := @extschema@.consumer_position(fetch_events.consumer);
    of_policy text := (SELECT c.policy FROM @extschema@.consumer c WHERE c.name = fetch_events.consumer);
    e @extschema@.event;
BEGIN
    IF place IS NULL THEN
        RAISE EXCEPTION 'consumer must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF fetch_events.max_rows IS NULL OR fetch_events.max_rows < 0 THEN
        RAISE EXCEPTION 'max_rows must not be negative or null' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR e IN SELECT v.* FROM @extschema@.event v
        WHERE v.id > place AND (of_policy IS NULL OR v.policy = of_policy)
        ORDER BY v.id LIMIT fetch_events.max_rows
    LOOP
        place := e.id;
        RETURN NEXT e;
    END LOOP;
    IF FOUND THEN
        PERFORM @extschema@.consumer_fetched(fetch_events.consumer, place);
    END IF;
END
$$;

COMMENT ON FUNCTION fetch_events(text, int) IS
    'The next events of a named consumer, in order, at most max_rows; the same again until ack_events(). Sessions that fetch for one consumer take turns: each waits until the other''s transaction has ended. Errors: 42704 unknown consumer, or not yours; 22004 consumer is NULL; 22023 negative max_rows.';

CREATE VIEW consumers WITH (security_barrier = true) AS
    SELECT c.name, pg_catalog.pg_get_userbyid(c.owner) AS owner, c.policy, c.acked, c.fetched, c.fetched_at, c.acked_at,
        (SELECT CASE WHEN count(*) > 10000 THEN '10000+' ELSE count(*)::text END FROM (
            SELECT FROM @extschema@.event e
            WHERE e.id > c.acked AND (c.policy IS NULL OR e.policy = c.policy)
              AND pg_catalog.pg_has_role(c.owner, e.owner, 'USAGE') LIMIT 10001) waiting) AS lag,
        (SELECT pg_catalog.clock_timestamp() - e.occurred_at FROM @extschema@.event e
            WHERE e.id > c.acked AND (c.policy IS NULL OR e.policy = c.policy)
              AND pg_catalog.pg_has_role(c.owner, e.owner, 'USAGE') ORDER BY e.id LIMIT 1) AS oldest
    FROM @extschema@.consumer c
    WHERE pg_catalog.pg_has_role(c.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');

COMMENT ON VIEW consumers IS 'Named consumers and how far they lag behind: your own, and those of roles that you may act for; members of pg_monitor see all.';
COMMENT ON COLUMN consumers.name IS 'The consumer.';
COMMENT ON COLUMN consumers.owner IS 'The role that subscribed.';
COMMENT ON COLUMN consumers.policy IS 'The policy whose events it reads; NULL: all that the reader may see.';
COMMENT ON COLUMN consumers.acked IS 'The last event that it has acknowledged.';
COMMENT ON COLUMN consumers.fetched IS 'The last event that it was given.';
COMMENT ON COLUMN consumers.fetched_at IS 'When it last fetched.';
COMMENT ON COLUMN consumers.acked_at IS 'When it last acknowledged.';
COMMENT ON COLUMN consumers.lag IS 'Events that it has not acknowledged; counted to 10000, as 10000+ beyond that.';
COMMENT ON COLUMN consumers.oldest IS 'Age of the first of them; NULL: there is none.';
