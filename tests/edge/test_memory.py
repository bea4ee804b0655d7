"""Memory under uploads that are far too large (A24, security goals): a hundred at once cost no more than 64 MB."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.broker import RunningBroker, broker_process
from tests.edge.raw import chunk, chunked

MB = 1024 * 1024
SIZE = 200 * MB
DECLARED = b"POST /jobs/batch HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % SIZE


class Memory:
    """Of a process, as the system counts it."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")

    def now(self) -> int:
        return self._figure("VmRSS")

    def peak(self) -> int:
        return self._figure("VmHWM")

    def forget_peak(self) -> None:
        (self._process / "clear_refs").write_text("5")

    def _figure(self, name: str) -> int:
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def measured(dsn: str) -> Iterator[tuple[RunningBroker, Memory]]:
    with broker_process(dsn, log_level="error") as (broker, process):
        for _ in range(20):
            broker.http.get("/livez")
        yield broker, Memory(process.pid)


@pytest.mark.parametrize(
    ("head", "piece"), [(DECLARED, b" " * MB), (chunked("/jobs/batch"), chunk(b" " * MB))], ids=["declared", "chunked"]
)
def test_a_hundred_large_uploads_at_once_take_little_memory(
    head: bytes, piece: bytes, measured: tuple[RunningBroker, Memory]
) -> None:
    broker, memory = measured
    memory.forget_peak()
    before = memory.now()
    statuses = asyncio.run(uploads(broker.base, head, piece, 100))
    assert set(statuses) <= {413, 503}
    assert 413 in statuses
    assert memory.peak() - before <= 64 * MB
    assert broker.http.get("/livez").status_code == 200


async def uploads(base: str, head: bytes, piece: bytes, count: int) -> list[int]:
    return await asyncio.gather(*[upload(base, head, piece) for _ in range(count)])


async def upload(base: str, head: bytes, piece: bytes) -> int:
    """The status. Like most clients it sends on until it hears something."""
    place = urlsplit(base)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(head)
    heard = asyncio.create_task(reader.readline())
    for _ in range(SIZE // MB):
        if heard.done():
            break
        writer.write(piece)
        await writer.drain()
    status = int((await heard).split()[1])
    writer.close()
    return status
