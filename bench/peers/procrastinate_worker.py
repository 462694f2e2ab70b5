"""Jobs of procrastinate, one for each order, scheduled at its deadline. With the argument `schema`: makes its tables."""

import asyncio
import sys

import procrastinate
import psycopg_pool

CONCURRENCY = 10
INTERVAL_S = 1

app = procrastinate.App(connector=procrastinate.PsycopgConnector())
shop = psycopg_pool.AsyncConnectionPool(
    min_size=CONCURRENCY, max_size=CONCURRENCY, kwargs={"autocommit": True}, open=False
)


@app.task(name="cancel_order", queue="cancel")
async def cancel_order(order_id):
    async with shop.connection() as db:
        await db.execute("SELECT cancel_order(%s)", [order_id])


async def main():
    async with app.open_async():
        if sys.argv[1:] == ["schema"]:
            await app.schema_manager.apply_schema_async()
            return
        async with shop:
            await shop.wait()
            print("ready", flush=True)
            await app.run_worker_async(concurrency=CONCURRENCY, fetch_job_polling_interval=INTERVAL_S)


asyncio.run(main())
