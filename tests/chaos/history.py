"""The history as the clients saw it: one JSON line per operation, in one file per process.

Each line is written at once, because of kill -9. Operations, and the items of requests and responses:

- `enqueue`: the request has the job, the response its id and status. A call without an
  Idempotency-Key is retried only if it was certainly not done. SQL in a producer's own transaction is
  such a call; if it was rolled back, it was not done.
- `claim`: the response has the leases. Settlements sent inside a claim are a `settle` operation of
  their own with the claim's times.
- `settle`, `heartbeat`: the request has id, token, outcome; the response has status, state, attempt,
  run_at or lease_until. A lease that a worker omits from a heartbeat with `holds_all` is a release of
  unknown outcome.
- `cancel`: the request has the id; the response has id and state of the job.
- `replay`: the request has the ids of dead letters; the response has the id of each replayed job, with
  `replayed_from` if it is a new job in another queue.
- `pause`, `resume`, `purge`: operations on `queue`. A purge removes waiting jobs; a `purge` with items
  removes these dead letters.
- `letters`: a list of dead letters.
- `leases`: the response has the running jobs and the ends of their leases.
- `revoke`: the request has the id of an API key.
"""

import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["invoke", "ok", "fail", "info"]
DEFERRED = "deferred"  # the code of an empty claim response with a retry delay: no claim was executed


class Item(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One job's part in an operation.

    Times are Unix times of the database's clock; 0 means none."""

    key: str = ""
    id: str = ""
    queue: str = ""
    group: str = ""
    unique: str = ""
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    deliveries: int = 0
    token: str = ""  # its hash
    payload: str = ""  # its hash
    outcome: str = ""  # as requested
    status: str = ""  # of the response
    state: str = ""  # of the response
    db_at: float = 0  # when the lease began
    lease_until: float = 0
    run_at: float = 0
    expires_at: float = 0
    timeout: float = 0  # timeout_seconds
    retryable: bool = True  # of a failure
    result: str = ""  # the hash of a completion's result
    depends_on: list[str] = []  # keys of jobs of the same call
    on_parent_failure: str = ""
    on_conflict: str = ""  # on_duplicate of a unique key
    replayed_from: str = ""


class Op(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of the history. t0 and t1 are times of the machine's clock, which all clients share.

    - `invoke`: the call was started.
    - `ok`: the operation was done.
    - `fail`: it was certainly not done.
    - `info`: the outcome is unknown."""

    f: str
    type: Kind
    call: str  # the same for an invoke and its result; a retry has the same key and another call
    proc: str
    t0: float
    t1: float = 0
    key: str = ""
    queue: str = ""  # of an operation on a queue
    via: int = -1  # number of the broker
    status: int = 0
    code: str = ""
    waits: bool = False  # of a settlement: the claim that carries it waits for jobs
    db_at: float = 0
    caller: str = ""  # id of the API key of the call
    items: list[Item] = []


class History:
    def __init__(self, folder: Path, proc: str) -> None:
        self.proc = proc
        self._file = os.open(folder / f"{proc}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._calls = 0

    def next_call(self) -> str:
        self._calls += 1
        return f"{self.proc}#{self._calls}"

    def write(self, op: Op) -> None:
        os.write(self._file, msgspec.json.encode(op) + b"\n")


def read(folder: Path) -> list[Op]:
    """Reads all files, sorted by time. A line that kill -9 truncated is omitted: its invoke line
    shows that the call was started."""
    return sorted((op for file in sorted(folder.glob("*.jsonl")) for op in _lines(file)), key=lambda op: op.t1 or op.t0)


def _lines(file: Path) -> Iterator[Op]:
    decoder = msgspec.json.Decoder(Op)
    for line in file.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield decoder.decode(line)


def now() -> float:
    return time.time()


def hashed(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def payload_hash(payload: object) -> str:
    return hashed(msgspec.json.encode(payload, order="sorted").decode())
