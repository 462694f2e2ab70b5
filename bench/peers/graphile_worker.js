// A job of graphile-worker for each order, to be run at its deadline. With the argument `schema`: makes its tables.

const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");

const CONCURRENCY = 10;
const INTERVAL_MS = 1000;

const pgPool = new Pool({ max: CONCURRENCY + 2 });
const shop = new Pool({ max: CONCURRENCY });
// It logs each job otherwise.
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

async function main() {
  if (process.argv[2] === "schema") {
    const utils = await makeWorkerUtils({ pgPool, logger });
    await utils.migrate();
    await utils.release();
    await Promise.all([pgPool.end(), shop.end()]);
    return;
  }
  const runner = await run({
    pgPool,
    logger,
    preset: {
      worker: {
        concurrentJobs: CONCURRENCY,
        pollInterval: INTERVAL_MS,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    taskList: {
      cancel_order: ({ id }) => shop.query({ name: "cancel", text: "SELECT cancel_order($1)", values: [id] }),
    },
  });
  console.log("ready");
  await runner.promise;
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
