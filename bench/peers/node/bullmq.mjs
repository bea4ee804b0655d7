// BullMQ on Redis: add / addBulk over one pipelined connection, and one worker.
import { noop, params, PAYLOAD, QUEUE, require, runDriver } from "./load.mjs";

const { Queue, Worker } = require("bullmq");
const connection = { host: "127.0.0.1", port: params.address, maxRetriesPerRequest: null };
const options = { removeOnComplete: true };
const queue = new Queue(QUEUE, { connection });

await runDriver({
  open: () => queue.waitUntilReady(),
  empty: () => queue.obliterate({ force: true }),
  send: () => queue.add("job", PAYLOAD, options),
  sendMany: (count) => queue.addBulk(Array.from({ length: count }, () => ({ name: "job", data: PAYLOAD, opts: options }))),
  async work(handled) {
    const handler = async (job) => {
      await noop(job.data);
      handled();
    };
    const worker = new Worker(QUEUE, handler, { connection, concurrency: params.concurrency });
    worker.on("error", (error) => { throw error; });
  },
  async left() {
    const counts = await queue.getJobCounts("wait", "active", "delayed", "prioritized", "failed");
    return Object.values(counts).reduce((sum, count) => sum + count, 0);
  },
});
