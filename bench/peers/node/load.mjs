// What all Node drivers share: callers that await each call, and a drain that counts jobs until the peer's own books say that none is left.
// A driver supplies open, prepare, empty, send, sendMany, work and left; `asked` are the parameters of this run, as JSON.
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";

export const asked = JSON.parse(process.argv[2]);
export const need = createRequire(`${asked.home}/`); // the packages lie in .bench, not beside this file
export const PAYLOAD = { text: "x".repeat(188) };
export const QUEUE = "bench";
export const noop = async () => {};

const SETTLED_POLL_MS = 2;
const FILL_CALL = 1000;
const now = () => performance.now() / 1000;
const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

export async function play(peer) {
  await peer.open?.();
  await { prepare: () => peer.prepare?.(), fill, enqueue, drain }[asked.action](peer);
  process.exit(0); // whatever the library still holds open
}

// Timing begins: the parent notes the CPU of server and database when it reads the line; ours is in the answer.
function stopwatch() {
  const began = now();
  const cpu = process.cpuUsage();
  tell({ begin: true });
  return (jobs) => {
    const { user, system } = process.cpuUsage(cpu);
    tell({ jobs, seconds: now() - began, cpu: (user + system) / 1e6 });
  };
}

async function fill(peer) {
  await peer.empty();
  for (let sent = 0; sent < asked.jobs; sent += FILL_CALL) await peer.sendMany(Math.min(FILL_CALL, asked.jobs - sent));
  await expect(peer, asked.jobs);
}

async function enqueue(peer) {
  await peer.empty();
  const loop = { sent: 0, over: false };
  const callers = Array.from({ length: asked.callers }, () => call(peer, loop));
  await pause(asked.warm * 1000);
  const [before, stop] = [loop.sent, stopwatch()];
  await Promise.race([pause(asked.seconds * 1000), Promise.all(callers)]); // a caller's error ends the run
  stop(loop.sent - before);
  loop.over = true;
  await Promise.all(callers);
  await expect(peer, loop.sent);
  await peer.empty();
}

async function call(peer, loop) {
  const send = asked.batch === 1 ? () => peer.send() : () => peer.sendMany(asked.batch);
  while (!loop.over) {
    await send();
    loop.sent += asked.batch;
  }
}

async function expect(peer, count) {
  const there = await peer.left();
  if (there !== count) throw new Error(`${there} jobs are there, ${count} were acknowledged`);
}

async function drain(peer) {
  let [handled, stop] = [0, null];
  await new Promise((resolve, reject) => {
    const count = () => {
      handled += 1;
      if (handled === asked.warmJobs) stop = stopwatch();
      if (handled === asked.jobs) resolve();
    };
    Promise.resolve(peer.work(count)).catch(reject);
  });
  await peer.settled?.();
  while ((await peer.left()) > 0) await pause(SETTLED_POLL_MS);
  stop(asked.jobs - asked.warmJobs);
  if (handled !== asked.jobs) throw new Error(`${handled} jobs were handled, ${asked.jobs} were there`);
}
