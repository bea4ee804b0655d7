// graphile-worker: add_job / add_jobs through WorkerUtils, and a runner with or without the local queue.
import { noop, params, PAYLOAD, QUEUE, require, runDriver } from "./load.mjs";

const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");
const logger = new Logger(() => () => {});
const pgPool = new Pool({ connectionString: params.address, max: params.pool });
let utils;

await runDriver({
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
    await Promise.all(Array.from({ length: params.instances ?? 1 }, () => run(options)));
  },
  async left() {
    const { rows } = await pgPool.query("SELECT count(*)::int AS left FROM graphile_worker._private_jobs");
    return rows[0].left;
  },
});

function settings() {
  const { address: connectionString, concurrency: concurrentJobs, pool: maxPoolSize } = params;
  const plain = { connectionString, concurrentJobs, maxPoolSize, logger };
  if (!params.prefetch) return plain;
  return { ...plain, localQueue: { size: params.prefetch }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
}
