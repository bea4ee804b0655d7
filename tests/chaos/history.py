"""What happened, as the clients saw it: one JSON line per operation, each process in a file of its own, written at once (kill -9).

Operations, and the items of their requests and responses:
- `enqueue`: request the job as sent, response its id and status. A call without an Idempotency-Key has no key, and is repeated only if it
  was certainly not done. SQL in a producer's own transaction is such a call; if it was rolled back, it was not done.
- `claim`: response the leases. Settlements sent inside a claim are a `settle` operation of their own with the claim's times.
- `settle`, `heartbeat`: request id, token, outcome; response status, state, attempt, run_at or lease_until. A lease that a worker leaves
  out of a heartbeat with `holds_all` is a release of unknown outcome.
- `cancel`: request id; response id and state of the job.
- `replay`: request the ids of dead letters; response the id of each replayed job, with `replayed_from` if it is a new job in another queue.
- `pause`, `resume`, `purge`: of `queue`. A purge removes waiting jobs; `purge` with items removes these dead letters.
- `letters`: a list of dead letters. `leases`: response the running jobs and when their leases end.
- `revoke`: request the id of an API key.
"""

import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["invoke", "ok", "fail", "info"]
DEFERRED = "sent_away"  # the code of an empty answer to a claim that says when to come back: nobody has looked


class Item(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One job's part in an operation. Instants are seconds since 1970 by the database's clock; none is 0."""

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
    outcome: str = ""  # asked for
    status: str = ""  # told
    state: str = ""  # told
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
    """`ok`: it was done. `fail`: certainly not. `info`: nobody knows. t0 and t1 by the machine's clock, which all clients share."""

    f: str
    type: Kind
    call: str  # an invoke and its result have the same; a repeated operation has the same key and another call
    proc: str
    t0: float
    t1: float = 0
    key: str = ""
    queue: str = ""  # of an operation on a queue
    via: int = -1  # which broker
    status: int = 0
    code: str = ""
    db_at: float = 0
    caller: str = ""  # the id of the API key that the call was made with
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
    """All files in one, by time. A line that kill -9 cut short is left out: its invoke line says that it was begun."""
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
