#!/usr/bin/env bash
# Writes a refund for each order that pg_expiry has cancelled, with psql alone; PGHOST, PGDATABASE, ... say where.
# psql shows notifications only after a statement, so it waits with wait_for_events(), which holds nothing.
export PGAPPNAME=refunds

# One turn: what is new, in one transaction with the place in the stream; then wait for more.
turn=$(cat <<'SQL'
BEGIN;
SELECT last_id FROM refund_place FOR UPDATE \gset
CREATE TEMP TABLE news ON COMMIT DROP AS SELECT id, kind, key FROM expiry.events_after(:last_id, 100);
INSERT INTO refund (event_id, order_key)
    SELECT id, key FROM news WHERE kind = 'cancelled' ORDER BY id ON CONFLICT DO NOTHING;
UPDATE refund_place SET last_id = greatest(last_id, (SELECT max(id) FROM news)) RETURNING last_id \gset
COMMIT;
CALL expiry.wait_for_events(:last_id, '30 seconds');
SQL
)

pause=1 # tenths of a second
while true; do
  began=$SECONDS
  yes "$turn" | psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --output /dev/null
  ((SECONDS - began < 2)) || pause=1 # it was connected for a while
  echo "refunds: the session has ended; again in $((pause / 10)).$((pause % 10)) s" >&2
  sleep "$((pause / 10)).$((pause % 10))"
  pause=$((pause * 2 > 100 ? 100 : pause * 2))
done
