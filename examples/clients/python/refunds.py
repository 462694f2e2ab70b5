"""Writes a refund for each order that pg_expiry has cancelled. Needs psycopg 3; PGHOST, PGDATABASE, ... say where."""

import select
import sys
import time

import psycopg
from psycopg.types.json import Jsonb


def catch_up(db):
    """Deals with the next events, in one transaction with the place in the stream. False: there are none."""
    with db.transaction():
        (last_id,) = db.execute("SELECT last_id FROM refund_place FOR UPDATE").fetchone()
        events = db.execute("SELECT id, kind, key FROM expiry.events_after(%s, 100)", [last_id]).fetchall()
        for event_id, kind, key in events:
            if kind == "cancelled":
                db.execute(
                    "INSERT INTO refund (event_id, order_key) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                    [event_id, Jsonb(key)],
                )
        if events:
            db.execute("UPDATE refund_place SET last_id = %s", [events[-1][0]])
    return bool(events)


def session(connected):
    with psycopg.connect(application_name="refunds", autocommit=True) as db:
        db.execute("LISTEN order_expired")  # first: what is cancelled from here on wakes us
        while True:
            while catch_up(db):
                pass
            connected()
            # A notification (one event, many, or a resync) says that there is news; events_after() says what.
            # The next statement takes it from the socket. After 30 s we look anyway.
            select.select([db.fileno()], [], [], 30)


def main():
    pause = first = 0.1

    def connected():
        nonlocal pause
        pause = first

    while True:
        try:
            session(connected)
        except psycopg.Error as error:
            print(f"refunds: {error}; again in {pause} s", file=sys.stderr)
        time.sleep(pause)
        pause = min(pause * 2, 10)


main()
