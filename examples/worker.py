"""A Longshore worker that needs nothing but Python. Copy it, and put your work into `handle`.

    LONGSHORE_URL=http://127.0.0.1:8080 LONGSHORE_KEY=lsk_... python worker.py mail reports

It claims one job at a time from the queues on its command line; start more copies for more
concurrency. It keeps retrying while the broker is unavailable, and sends heartbeats while a job
runs. On SIGTERM or Ctrl-C it finishes and settles its job before it exits."""

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

URL = os.environ.get("LONGSHORE_URL", "http://127.0.0.1:8080").rstrip("/")
KEY = os.environ.get("LONGSHORE_KEY")  # needs the scope `work`, if the broker requires keys
QUEUES = sys.argv[1:] or ["default"]
WORKER_ID = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"  # unique for each copy


# Yours: begin
def handle(job, cancelled):
    """Returns the result of the job.

    Any exception makes the broker retry the job later; NotRetryable makes it a dead letter at once.
    `cancelled` is an Event that is set when the job is cancelled: a long job should check it
    regularly."""
    if job["job_type"] == "welcome":
        return {"greeted": job["payload"]["to"]}
    raise NotRetryable(f"this worker does not know jobs of type {job['job_type']}")


# Yours: end


class NotRetryable(Exception):
    """Raise this if another attempt would fail in the same way."""


class Refused(NotRetryable):
    """The broker rejected the request; a retry would be rejected too."""

    def __init__(self, status, body):
        super().__init__(f"HTTP {status}: {body}")
        self.status = status


class Stopped(Exception):
    """SIGTERM interrupted a claim that was waiting for jobs."""


class Shutdown:
    """On SIGTERM, ends a waiting claim at once, but lets a running job finish."""

    def __init__(self):
        self.requested = False
        self.interruptible = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, *_):
        self.requested = True
        if self.interruptible:
            self.interruptible = False
            raise Stopped


def post(path, body, headers=None):
    """Sends one request. Refused: do not retry. OSError and HTTPException: retry."""
    authorization = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    data = json.dumps(body, allow_nan=False).encode()
    request = urllib.request.Request(
        URL + path, data, {"Content-Type": "application/json", **authorization, **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            detail = error.read().decode(errors="replace").strip()
        if error.code == 429 or error.code >= 500:
            raise OSError(f"HTTP {error.code}: {detail}") from error
        raise Refused(error.code, detail) from error


def post_with_retries(path, body, headers=None):
    """Retries until the broker responds, because it may be restarting.

    A repeated settlement, or a claim with the same Idempotency-Key, has the effect of one."""
    delay = 0.1
    while True:
        try:
            return post(path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            print(f"{path}: {error}; retrying", file=sys.stderr)
        time.sleep(delay)
        delay = min(2 * delay, 5)


def claim(shutdown):
    """Claims the next job; waits up to 20 seconds for one.

    The Idempotency-Key makes the claim repeatable: if the response is lost, the retry gets the same
    job."""
    body = {"queues": QUEUES, "worker_id": WORKER_ID, "wait_seconds": 20}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    try:
        shutdown.interruptible = not shutdown.requested
        response = post_with_retries("/claim", body, headers)
        shutdown.interruptible = False
        return response
    except Stopped:
        # The interrupted claim may have claimed a job. The retry returns that job, without waiting.
        return last_claim(body | {"wait_seconds": 0}, headers)


def last_claim(body, headers):
    try:
        return post("/claim", body, headers)
    except (OSError, http.client.HTTPException):  # another worker gets the job, if any, when the lease expires
        return {"jobs": [], "directive": "stop", "poll_after_ms": 0}


def run(job):
    """Handles one job while heartbeats extend its lease, then settles it."""
    finished, cancelled = threading.Event(), threading.Event()
    heartbeats = threading.Thread(target=send_heartbeats, args=(job, finished, cancelled), daemon=True)
    heartbeats.start()
    try:
        settle(job, "complete", result=handle(job, cancelled))
    except Exception as error:
        described = {"message": str(error), "error_type": type(error).__name__}
        settle_failure(job, error=described, retryable=not isinstance(error, NotRetryable))
    finally:
        finished.set()


def settle(job, outcome, **body):
    post_with_retries(f"/jobs/{job['id']}/{outcome}", {"lease_token": job["lease_token"], **body})


def settle_failure(job, **body):
    try:
        settle(job, "fail", **body)
    except Refused as error:  # most likely 409: the lease expired, and another worker has the job
        print(f"job {job['id']}: {error}", file=sys.stderr)


def send_heartbeats(job, finished, cancelled):
    """Sends three heartbeats per lease period, so that two may get lost."""
    while not finished.wait(job["lease_seconds"] / 3):
        try:
            response = post(f"/jobs/{job['id']}/heartbeat", {"lease_token": job["lease_token"]})
        except Refused:
            cancelled.set()  # the lease is lost: the broker would reject the result
            return
        except (OSError, http.client.HTTPException):
            continue  # the next heartbeat may succeed
        if response["action"] != "continue":
            cancelled.set()


def main():
    shutdown, directive = Shutdown(), "run"
    while directive == "run" and not shutdown.requested:
        response = claim(shutdown)
        for job in response["jobs"]:
            run(job)
        directive = response["directive"]  # an operator can drain this worker: POST /workers/{id}/drain
        if not response["jobs"]:
            time.sleep(response["poll_after_ms"] / 1000)


if __name__ == "__main__":
    try:
        main()
    except Refused as error:  # a wrong key or a wrong queue name, for example
        sys.exit(f"/claim: {error}")
