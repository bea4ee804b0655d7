// pg-boss: send / insert, and workers that fetch batches back to back while these come full.
import { asked, need, noop, PAYLOAD, play, QUEUE } from "./load.mjs";

const { PgBoss } = need("pg-boss");
const { Pool } = need("pg");
const boss = new PgBoss({ connectionString: asked.at, max: asked.pool, supervise: false, schedule: false });
const pool = new Pool({ connectionString: asked.at, max: 1 });

await play({
  async open() {
    boss.on("error", (error) => { throw error; });
    await boss.start();
  },
  prepare: () => boss.createQueue(QUEUE),
  empty: () => boss.deleteAllJobs(QUEUE),
  send: () => boss.send(QUEUE, PAYLOAD),
  sendMany: (count) => boss.insert(QUEUE, Array.from({ length: count }, () => ({ data: PAYLOAD }))),
  async work(handled) {
    const options = { batchSize: asked.prefetch, localConcurrency: asked.concurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
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
