// pg-boss: send / insert, and workers that fetch batches back to back while the batches are full.
import { noop, params, PAYLOAD, QUEUE, require, runDriver } from "./load.mjs";

const { PgBoss } = require("pg-boss");
const { Pool } = require("pg");
const boss = new PgBoss({ connectionString: params.address, max: params.pool, supervise: false, schedule: false });
const pool = new Pool({ connectionString: params.address, max: 1 });

await runDriver({
  async open() {
    boss.on("error", (error) => { throw error; });
    await boss.start();
  },
  prepare: () => boss.createQueue(QUEUE),
  empty: () => boss.deleteAllJobs(QUEUE),
  send: () => boss.send(QUEUE, PAYLOAD),
  sendMany: (count) => boss.insert(QUEUE, Array.from({ length: count }, () => ({ data: PAYLOAD }))),
  async work(handled) {
    const options = {
      batchSize: params.prefetch,
      localConcurrency: params.concurrency,
      burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5,
    };
    await boss.work(QUEUE, options, async (jobs) => {
      for (const job of jobs) {
        await noop(job);
        handled();
      }
    });
  },
  async left() {
    const { rows } = await pool.query("SELECT count(*)::int AS left FROM pgboss.job WHERE state < 'completed'");
    return rows[0].left;
  },
});
