"""Memory during uploads that are far too large (a hundred at once take no more than 64 MB), and
while claims wait that have settled jobs with large results.

See docs/reliability/faults.md#a24.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.broker import RunningBroker, broker_process
from tests.http.raw_connection import chunk, chunked
from tests.polls import RawClaim, parked_polls

pytestmark = pytest.mark.slow

MB = 1024 * 1024
SIZE = 200 * MB
DECLARED = b"POST /jobs/batch HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % SIZE


class Memory:
    """The memory of a process, as the operating system counts it."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")

    def now(self) -> int:
        return self._read_bytes("VmRSS")

    def peak(self) -> int:
        return self._read_bytes("VmHWM")

    def reset_peak(self) -> None:
        (self._process / "clear_refs").write_text("5")

    def _read_bytes(self, name: str) -> int:
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def measured_broker(dsn: str) -> Iterator[tuple[RunningBroker, Memory]]:
    with broker_process(dsn, log_level="error") as (broker, process):
        for _ in range(20):
            broker.http.get("/livez")
        yield broker, Memory(process.pid)


@pytest.mark.parametrize(
    ("head", "piece"), [(DECLARED, b" " * MB), (chunked("/jobs/batch"), chunk(b" " * MB))], ids=["declared", "chunked"]
)
def test_a_hundred_concurrent_large_uploads_take_at_most_64_mb(
    head: bytes, piece: bytes, measured_broker: tuple[RunningBroker, Memory]
) -> None:
    broker, memory = measured_broker
    memory.reset_peak()
    before = memory.now()
    statuses = asyncio.run(uploads(broker.base, head, piece, 100))
    assert set(statuses) <= {413, 503}
    assert 413 in statuses
    assert memory.peak() - before <= 64 * MB
    assert broker.http.get("/livez").status_code == 200


async def uploads(base: str, head: bytes, piece: bytes, count: int) -> list[int]:
    return await asyncio.gather(*[upload(base, head, piece) for _ in range(count)])


async def upload(base: str, head: bytes, piece: bytes) -> int:
    """Returns the status. Like most clients it sends until it receives something."""
    url = urlsplit(base)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(head)
    status_line = asyncio.create_task(reader.readline())
    for _ in range(SIZE // MB):
        if status_line.done():
            break
        writer.write(piece)
        await writer.drain()
    status = int((await status_line).split()[1])
    writer.close()
    return status


def test_claims_that_wait_after_their_settlements_keep_no_results_in_memory(
    measured_broker: tuple[RunningBroker, Memory], eventually: Callable[..., Any]
) -> None:
    """Forty bodies of 1 MB."""
    broker, memory = measured_broker
    settle = [
        {"job_id": str(uuid4()), "lease_token": "lost", "outcome": "complete", "result": "x" * 250_000}
        for _ in range(4)
    ]
    claim = {"queues": ["always-empty"], "settle": settle, "wait_after_settle": True, "wait_seconds": 60}
    polls: list[RawClaim] = []

    def park(count: int) -> None:
        while len(polls) < count:
            polls.append(RawClaim(broker.base, claim))
            eventually(lambda: parked_polls(broker.http) == len(polls))

    park(10)
    before = memory.now()
    park(50)
    assert memory.now() - before <= 10 * MB
    for poll in polls:
        poll.cut()
    eventually(lambda: parked_polls(broker.http) == 0)
