// What all Node drivers share: callers that await each call, and a drain. A drain counts jobs
// until the peer itself reports that none is left.
// A driver supplies open, prepare, empty, send, sendMany, work, settled and left. `params` are the
// parameters of this run, as JSON.
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";

export const params = JSON.parse(process.argv[2]);
export const require = createRequire(`${params.home}/`); // the packages are installed in .bench, not beside this file
export const PAYLOAD = { text: "x".repeat(188) };
export const QUEUE = "bench";
export const noop = async () => {};

const SETTLED_POLL_MS = 2;
const FILL_CALL = 1000;
const now = () => performance.now() / 1000;
const writeLine = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

export async function runDriver(driver) {
  await driver.open?.();
  await { prepare: () => driver.prepare?.(), fill, enqueue, drain }[params.action](driver);
  process.exit(0); // even if the library keeps sockets open
}

// Starts timing. The parent reads the CPU time of server and database when it gets this line; the
// last line has the CPU time of this process.
function stopwatch() {
  const began = now();
  const cpu = process.cpuUsage();
  writeLine({ begin: true });
  return (jobs) => {
    const { user, system } = process.cpuUsage(cpu);
    writeLine({ jobs, seconds: now() - began, cpu: (user + system) / 1e6 });
  };
}

async function fill(driver) {
  await driver.empty();
  for (let sent = 0; sent < params.jobs; sent += FILL_CALL) {
    await driver.sendMany(Math.min(FILL_CALL, params.jobs - sent));
  }
  await expect(driver, params.jobs);
}

async function enqueue(driver) {
  await driver.empty();
  const sending = { sent: 0, over: false };
  const callers = Array.from({ length: params.callers }, () => call(driver, sending));
  await pause(params.warm * 1000);
  const [before, stop] = [sending.sent, stopwatch()];
  await Promise.race([pause(params.seconds * 1000), Promise.all(callers)]); // a caller's error ends the run
  stop(sending.sent - before);
  sending.over = true;
  await Promise.all(callers);
  await expect(driver, sending.sent);
  await driver.empty();
}

async function call(driver, sending) {
  const send = params.batch === 1 ? () => driver.send() : () => driver.sendMany(params.batch);
  while (!sending.over) {
    await send();
    sending.sent += params.batch;
  }
}

async function expect(driver, count) {
  const stored = await driver.left();
  if (stored !== count) throw new Error(`${stored} jobs are stored, ${count} were acknowledged`);
}

async function drain(driver) {
  let [handled, stop] = [0, null];
  await new Promise((resolve, reject) => {
    const count = () => {
      handled += 1;
      if (handled === params.warmJobs) stop = stopwatch();
      if (handled === params.jobs) resolve();
    };
    Promise.resolve(driver.work(count)).catch(reject);
  });
  await driver.settled?.();
  while ((await driver.left()) > 0) await pause(SETTLED_POLL_MS);
  stop(params.jobs - params.warmJobs);
  if (handled !== params.jobs) throw new Error(`${handled} jobs were handled, ${params.jobs} were stored`);
}
