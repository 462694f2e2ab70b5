// A job of pg-boss for each order, to be started after its deadline. With the argument `schema`: makes its tables.

const { Pool } = require("pg");
const { PgBoss } = require("pg-boss");

const QUEUE = "cancel";
const BATCH = 100;
const CONCURRENCY = 10;
const INTERVAL_S = 1;
const { PGHOST, PGPORT, PGUSER, PGDATABASE } = process.env;

const boss = new PgBoss({ host: PGHOST, port: Number(PGPORT), user: PGUSER, database: PGDATABASE });
const shop = new Pool({ max: CONCURRENCY });

async function cancel(jobs) {
  const left = jobs.values();
  const one = ({ id }) => shop.query({ name: "cancel", text: "SELECT cancel_order($1)", values: [id] });
  const each = async () => {
    for (const job of left) await one(job.data);
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, each));
}

async function main() {
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue(QUEUE);
  if (process.argv[2] === "schema") {
    await boss.stop({ graceful: false });
    await shop.end();
    process.exit(0);
  }
  await boss.work(QUEUE, { batchSize: BATCH, pollingIntervalSeconds: INTERVAL_S, burstWhenBatchFull: true }, cancel);
  console.log("ready");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
