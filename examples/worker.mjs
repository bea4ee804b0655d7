// A Longshore worker that needs nothing but Node.js (18 or newer). Copy it, and put your work into `handle`.
//
//     LONGSHORE_URL=http://127.0.0.1:8080 LONGSHORE_KEY=lsk_... node worker.mjs mail reports
//
// It claims one job at a time from the queues on its command line; start more copies for more
// concurrency. It keeps retrying while the broker is unavailable, and sends heartbeats while a job
// runs. On SIGTERM or Ctrl-C it finishes and settles its job before it exits.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const URL = (process.env.LONGSHORE_URL ?? "http://127.0.0.1:8080").replace(/\/$/, "");
const KEY = process.env.LONGSHORE_KEY; // needs the scope `work`, if the broker requires keys
const QUEUES = process.argv.length > 2 ? process.argv.slice(2) : ["default"];
const WORKER_ID = `${hostname()}-${process.pid}-${randomUUID().slice(0, 8)}`; // unique for each copy

// Throw this if another attempt would fail in the same way.
class NotRetryable extends Error {}

// Yours: begin
// Returns the result of the job. Any exception makes the broker retry the job later; NotRetryable
// makes it a dead letter at once. `cancelled` is an AbortSignal that fires when the job is
// cancelled: pass it to fetch, for example.
async function handle(job, cancelled) {
  if (job.job_type === "welcome") return { greeted: job.payload.to };
  throw new NotRetryable(`this worker does not know jobs of type ${job.job_type}`);
}
// Yours: end

// The broker rejected the request; a retry would be rejected too.
class Refused extends NotRetryable {}

const shutdown = new AbortController();
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => shutdown.abort());

// Sends one request. Refused: do not retry. Any other exception: retry.
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
  const problem = `HTTP ${response.status}: ${(await response.text()).trim()}`;
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

// Retries until the broker responds, because it may be restarting. A repeated settlement, or a claim
// with the same Idempotency-Key, has the effect of one.
async function postWithRetries(path, json, options = {}) {
  for (let delay = 100; ; delay = Math.min(2 * delay, 5000)) {
    try {
      return await post(path, json, options);
    } catch (error) {
      if (error instanceof Refused || options.signal?.aborted) throw error;
      console.error(`${path}: ${error.cause?.code ?? error.message}; retrying`);
    }
    await sleep(delay);
  }
}

// Claims the next job; waits up to 20 seconds for one. The Idempotency-Key makes the claim
// repeatable: if the response is lost, the retry gets the same job.
async function claim() {
  const body = { queues: QUEUES, worker_id: WORKER_ID, wait_seconds: 20 };
  const headers = { "Idempotency-Key": randomUUID() };
  try {
    return await postWithRetries("/claim", JSON.stringify(body), { headers, signal: shutdown.signal });
  } catch (error) {
    if (!shutdown.signal.aborted) throw error;
    // The interrupted claim may have claimed a job. The retry returns that job, without waiting.
    return await lastClaim({ ...body, wait_seconds: 0 }, headers);
  }
}

async function lastClaim(body, headers) {
  try {
    return await post("/claim", JSON.stringify(body), { headers });
  } catch {
    return { jobs: [], directive: "stop", poll_after_ms: 0 }; // another worker gets the job, if any, when the lease expires
  }
}

// Handles one job while heartbeats extend its lease, then settles it.
async function run(job) {
  const cancelled = new AbortController();
  // Three heartbeats per lease period, so that two may get lost.
  const heartbeats = setInterval(() => sendHeartbeat(job, cancelled), (job.lease_seconds * 1000) / 3);
  try {
    await settle(job, "complete", { result: (await handle(job, cancelled.signal)) ?? null });
  } catch (error) {
    const described = { message: String(error?.message ?? error), error_type: typeOf(error) };
    await settleFailure(job, { error: described, retryable: !(error instanceof NotRetryable) });
  } finally {
    clearInterval(heartbeats);
  }
}

// A class that extends Error inherits the name "Error" unless it sets another.
function typeOf(error) {
  return error?.name === "Error" ? error.constructor.name : (error?.name ?? "Error");
}

async function settle(job, outcome, body) {
  const json = JSON.stringify({ lease_token: job.lease_token, ...body }); // throws if the result is not serializable
  await postWithRetries(`/jobs/${job.id}/${outcome}`, json);
}

async function settleFailure(job, body) {
  try {
    await settle(job, "fail", body);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    console.error(`job ${job.id}: ${error.message}`); // most likely 409: the lease expired
  }
}

async function sendHeartbeat(job, cancelled) {
  try {
    const response = await post(`/jobs/${job.id}/heartbeat`, JSON.stringify({ lease_token: job.lease_token }));
    if (response.action !== "continue") cancelled.abort();
  } catch (error) {
    if (error instanceof Refused) cancelled.abort(); // the lease is lost: the broker would reject the result
  }
}

// A wrong key or a wrong queue name, for example.
function exitIfRefused(error) {
  if (!(error instanceof Refused)) throw error;
  console.error(`/claim: ${error.message}`);
  process.exit(1);
}

let directive = "run"; // an operator can drain this worker: POST /workers/{id}/drain
while (directive === "run" && !shutdown.signal.aborted) {
  const response = await claim().catch(exitIfRefused);
  for (const job of response.jobs) await run(job);
  directive = response.directive;
  if (response.jobs.length === 0) await sleep(response.poll_after_ms);
}
process.exit(0); // keep-alive connections would delay the exit for a few seconds
