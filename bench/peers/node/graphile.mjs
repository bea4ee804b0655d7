// graphile-worker: add_job / add_jobs through WorkerUtils, and a runner with or without the local queue.
import { asked, need, noop, PAYLOAD, play, QUEUE } from "./load.mjs";

const { Logger, makeWorkerUtils, run } = need("graphile-worker");
const { Pool } = need("pg");
const logger = new Logger(() => () => {});
const pgPool = new Pool({ connectionString: asked.at, max: asked.pool });
let utils;

await play({
  async open() {
    utils = await makeWorkerUtils({ pgPool, logger });
  },
  prepare: () => utils.migrate(),
  empty: () => pgPool.query("TRUNCATE graphile_worker._private_jobs, graphile_worker._private_job_queues"),
  send: () => utils.addJob(QUEUE, PAYLOAD),
  sendMany: (count) => utils.addJobs(Array.from({ length: count }, () => ({ identifier: QUEUE, payload: PAYLOAD }))),
  async work(handled) {
    const handler = async (payload) => {
      await noop(payload);
      handled();
    };
    const options = { preset: { worker: settings() }, taskList: { [QUEUE]: handler }, parsedCronItems: [], noHandleSignals: true };
    await Promise.all(Array.from({ length: asked.instances ?? 1 }, () => run(options)));
  },
  async left() {
    const { rows } = await pgPool.query("SELECT count(*)::int AS left FROM graphile_worker._private_jobs");
    return rows[0].left;
  },
});

function settings() {
  const plain = { connectionString: asked.at, concurrentJobs: asked.concurrency, maxPoolSize: asked.pool, logger };
  if (!asked.prefetch) return plain;
  return { ...plain, localQueue: { size: asked.prefetch }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
}
