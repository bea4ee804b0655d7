// beanstalkd: a connection per caller, as a connection answers one command after the other. It has no bulk command.
import { noop, params, PAYLOAD, require, runDriver } from "./load.mjs";

const Jackd = require("jackd");
const idle = [];
let control;

await runDriver({
  async open() {
    control = await connect();
  },
  empty: () => Promise.all(Array.from({ length: params.callers ?? params.concurrency }, discard)),
  send,
  sendMany(count) {
    const share = (n) => Math.floor((count + n) / params.concurrency);
    return Promise.all(Array.from({ length: params.concurrency }, (_, n) => sendSequentially(share(n))));
  },
  work: (handled) => Promise.all(Array.from({ length: params.concurrency }, () => worker(handled))),
  async left() {
    const stats = await control.statsTube("default");
    return [...stats.matchAll(/current-jobs-(?:ready|reserved): (\d+)/g)].reduce((sum, [, count]) => sum + Number(count), 0);
  },
});

async function connect() {
  const client = new Jackd();
  await client.connect({ host: "127.0.0.1", port: params.address });
  return client;
}

async function send() {
  const client = idle.pop() ?? (await connect());
  await client.put(JSON.stringify(PAYLOAD));
  idle.push(client);
}

async function sendSequentially(count) {
  for (let sent = 0; sent < count; sent += 1) await send();
}

async function worker(handled) {
  const client = await connect();
  for (;;) {
    const job = await client.reserve();
    await noop(JSON.parse(job.payload));
    await client.delete(job.id);
    handled();
  }
}

async function discard() {
  const client = await connect();
  for (let job = await next(client); job; job = await next(client)) await client.delete(job.id);
  await client.quit();
}

async function next(client) {
  try {
    return await client.reserveWithTimeout(0);
  } catch (error) {
    if (error.message !== "TIMED_OUT") throw error;
    return null;
  }
}
