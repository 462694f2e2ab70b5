// Writes a refund for each order that pg_expiry has cancelled. Needs pg; PGHOST, PGDATABASE, ... say where.
const { Client } = require("pg");

const FIRST_PAUSE = 100;
let pause = FIRST_PAUSE;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Deals with the next events, in one transaction with the place in the stream. False: there are none.
async function catchUp(db) {
  await db.query("BEGIN");
  const place = await db.query("SELECT last_id FROM refund_place FOR UPDATE");
  // Ids are strings here, and so are 64-bit keys: JavaScript's numbers would round them.
  const { rows } = await db.query("SELECT id, kind, key FROM expiry.events_after($1, 100)", [place.rows[0].last_id]);
  for (const { id, kind, key } of rows) {
    if (kind === "cancelled") {
      await db.query("INSERT INTO refund (event_id, order_key) VALUES ($1, $2) ON CONFLICT DO NOTHING", [id, key]);
    }
  }
  if (rows.length > 0) {
    await db.query("UPDATE refund_place SET last_id = $1", [rows.at(-1).id]);
  }
  await db.query("COMMIT");
  return rows.length > 0;
}

async function session() {
  const db = new Client({ application_name: "refunds" });
  let wake = () => {};
  const broken = new Promise((_, reject) => {
    db.on("error", reject);
    db.on("end", () => reject(new Error("the connection has ended")));
  });
  broken.catch(() => {}); // it is awaited below, and may break before
  db.on("notification", () => wake());
  try {
    await db.connect();
    await db.query("LISTEN order_expired"); // first: what is cancelled from here on wakes us
    for (;;) {
      const news = new Promise((resolve) => (wake = resolve));
      while (await catchUp(db));
      pause = FIRST_PAUSE;
      // A notification (one event, many, or a resync) says that there is news; events_after() says what.
      let timer;
      const look = new Promise((resolve) => (timer = setTimeout(resolve, 30_000)));
      await Promise.race([news, broken, look]).finally(() => clearTimeout(timer));
    }
  } finally {
    db.end().catch(() => {});
  }
}

(async () => {
  for (;;) {
    await session().catch((error) => console.error(`refunds: ${error.message}; again in ${pause} ms`));
    await sleep(pause);
    pause = Math.min(pause * 2, 10_000);
  }
})();
