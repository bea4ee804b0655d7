// A Longshore worker that needs nothing but Node.js (18 or newer). Copy it, and put your work into `handle`.
//
//     LONGSHORE_URL=http://127.0.0.1:8080 LONGSHORE_KEY=lsk_... node worker.mjs mail reports
//
// It takes one job at a time from the queues named on its command line; start more copies to do more at once. It keeps going while
// the broker is away, sends heartbeats while a job runs, and on SIGTERM or Ctrl-C finishes and settles its job before it exits.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const URL = (process.env.LONGSHORE_URL ?? "http://127.0.0.1:8080").replace(/\/$/, "");
const KEY = process.env.LONGSHORE_KEY; // with the scope `work`, once the broker asks for keys
const QUEUES = process.argv.length > 2 ? process.argv.slice(2) : ["default"];
const WORKER_ID = `${hostname()}-${process.pid}-${randomUUID().slice(0, 8)}`; // two copies must not share one

// Raise it when another attempt would fail in the same way.
class NotRetryable extends Error {}

// Yours: begin
// Returns the result. An exception makes the broker try again later; NotRetryable makes the job a dead letter at once. `cancelled` is
// an AbortSignal that fires when the job is cancelled: pass it to fetch, for example.
async function handle(job, cancelled) {
  if (job.job_type === "welcome") return { greeted: job.payload.to };
  throw new NotRetryable(`this worker does not know jobs of type ${job.job_type}`);
}
// Yours: end

// The broker refuses the call as it is: repeating it changes nothing.
class Refused extends NotRetryable {}

const shutdown = new AbortController();
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => shutdown.abort());

// One call. Refused: do not repeat it. Any other exception: repeat it.
async function post(path, json, { headers = {}, signal } = {}) {
  const authorization = KEY ? { Authorization: `Bearer ${KEY}` } : {};
  const timeout = AbortSignal.timeout(60_000);
  const response = await fetch(URL + path, {
    method: "POST",
    body: json,
    headers: { "Content-Type": "application/json", ...authorization, ...headers },
    signal: signal ? anyOf(signal, timeout) : timeout,
  });
  if (response.ok) return await response.json();
  const problem = `HTTP ${response.status}: ${await response.text()}`;
  throw response.status === 429 || response.status >= 500 ? new Error(problem) : new Refused(problem);
}

// AbortSignal.any, which Node 18 does not have.
function anyOf(...signals) {
  const controller = new AbortController();
  for (const signal of signals) {
    if (signal.aborted) controller.abort();
    signal.addEventListener("abort", () => controller.abort(), { once: true, signal: controller.signal });
  }
  return controller.signal;
}

// The broker may be restarting. A repeated settlement, or a claim with the same Idempotency-Key, has the effect of one.
async function postUntilAnswered(path, json, options = {}) {
  for (let delay = 100; ; delay = Math.min(2 * delay, 5000)) {
    try {
      return await post(path, json, options);
    } catch (error) {
      if (error instanceof Refused || options.signal?.aborted) throw error;
      console.error(`${path}: ${error.cause?.code ?? error.message}; trying again`);
    }
    await sleep(delay);
  }
}

// The next job if there is one within 20 seconds. The key makes the claim repeatable: if the response is lost, the repetition gets the
// same job.
async function claim() {
  const body = { queues: QUEUES, worker_id: WORKER_ID, wait_seconds: 20 };
  const headers = { "Idempotency-Key": randomUUID() };
  try {
    return await postUntilAnswered("/claim", JSON.stringify(body), { headers, signal: shutdown.signal });
  } catch (error) {
    if (!shutdown.signal.aborted) throw error;
    // The interrupted claim may have got a job: repeating it returns that job, and does not wait for another.
    return await lastClaim({ ...body, wait_seconds: 0 }, headers);
  }
}

async function lastClaim(body, headers) {
  try {
    return await post("/claim", JSON.stringify(body), { headers });
  } catch {
    return { jobs: [], directive: "stop", poll_after_ms: 0 }; // if there was a job, another worker gets it when the lease runs out
  }
}

// Handles one job, sends heartbeats in the meantime, and settles it.
async function run(job) {
  const cancelled = new AbortController();
  // Three heartbeats per lease, so that two may get lost.
  const heartbeats = setInterval(() => sendHeartbeat(job, cancelled), (job.lease_seconds * 1000) / 3);
  try {
    await settle(job, "complete", { result: (await handle(job, cancelled.signal)) ?? null });
  } catch (error) {
    const described = { message: String(error?.message ?? error), error_type: error?.name ?? "Error" };
    await settleFailure(job, { error: described, retryable: !(error instanceof NotRetryable) });
  } finally {
    clearInterval(heartbeats);
  }
}

async function settle(job, outcome, body) {
  const json = JSON.stringify({ lease_token: job.lease_token, ...body }); // throws if the result has no JSON form
  await postUntilAnswered(`/jobs/${job.id}/${outcome}`, json);
}

async function settleFailure(job, body) {
  try {
    await settle(job, "fail", body);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    console.error(`job ${job.id}: ${error.message}`); // most likely 409: the lease ran out, and another worker has the job
  }
}

async function sendHeartbeat(job, cancelled) {
  try {
    const answer = await post(`/jobs/${job.id}/heartbeat`, JSON.stringify({ lease_token: job.lease_token }));
    if (answer.action !== "continue") cancelled.abort();
  } catch (error) {
    if (error instanceof Refused) cancelled.abort(); // the lease is lost: the broker would reject the handler's result
  }
}

let directive = "run"; // an operator can drain this worker: POST /workers/{id}/drain
while (directive === "run" && !shutdown.signal.aborted) {
  const answer = await claim();
  for (const job of answer.jobs) await run(job);
  directive = answer.directive;
  if (answer.jobs.length === 0) await sleep(answer.poll_after_ms);
}
process.exit(0); // keep-alive connections would delay the exit for a few seconds
