"""What a load process is ordered to do, and the figures that it returns."""

from typing import TypeAlias

import msgspec

QUEUE = "bench"
PAYLOAD = {"text": "x" * 188}  # 200 bytes of JSON

Figures: TypeAlias = dict[str, float]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`jobs`: how many there are to drain. `server`, `database`: processes whose CPU is reported."""

    kind: str
    ports: list[int]
    connections: int
    batch: int = 1
    seconds: float = 0.0
    warm_up: float = 0.0
    jobs: int = 0
    key: str | None = None
    server: list[int] = []
    database: list[int] = []


class Job(msgspec.Struct, frozen=True):
    job_type: str = "bench"
    queue: str = QUEUE
    payload: dict[str, str] = msgspec.field(default_factory=lambda: PAYLOAD)


def job_body() -> bytes:
    return msgspec.json.encode(Job())


def batch_body(jobs: int) -> bytes:
    return b'{"jobs":[%b]}' % b",".join([job_body()] * jobs)


def mixed_batch_body(jobs: int) -> bytes:
    """A batch with 23 job types, 7 priorities and unequal payloads, 200 bytes on average.

    Equal jobs are cheaper: a column of equal values is sent to the database once.
    """
    return msgspec.json.encode({"jobs": [_mixed_job(number) for number in range(jobs)]})


def _mixed_job(number: int) -> dict[str, object]:
    payload = {"number": number, "text": "x" * (75 + 37 * number % 200)}
    return {"job_type": f"bench-{number % 23}", "queue": QUEUE, "priority": number % 7, "payload": payload}
