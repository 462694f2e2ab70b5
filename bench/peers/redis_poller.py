"""Takes order ids whose deadline has passed from a sorted set of Redis, once a second, and cancels the orders.

An id leaves the set when its order is cancelled: after a crash some are cancelled twice, which does nothing.
"""

import os
import time

import psycopg
import redis

BATCH = 1000
INTERVAL_S = 1

db = psycopg.connect(autocommit=True)
queue = redis.Redis(unix_socket_path=os.environ["REDIS_SOCKET"])
print("ready", flush=True)
while True:
    due = queue.zrangebyscore("pending", "-inf", time.time(), start=0, num=BATCH)
    for order in due:
        db.execute("SELECT cancel_order(%s)", [int(order)])
    if due:
        queue.zrem("pending", *due)
    if len(due) < BATCH:
        time.sleep(INTERVAL_S)
