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
END
$$;

COMMENT ON FUNCTION events_after(bigint, int, text) IS
    'The events with a greater id, in order, at most max_rows; of one policy, or with NULL of all that you may act for. Whoever has read up to N has missed nothing below N. Errors: 22023 negative id or max_rows, 42704 unknown policy.';
