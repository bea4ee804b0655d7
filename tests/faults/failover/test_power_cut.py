"""A power cut: data that Postgres has written but not flushed is lost.

Collected only where a disk can be mounted and shut down.
"""

from collections.abc import Iterator

import pytest

from tests.broker import broker_process
from tests.database import Loop
from tests.faults.failover.disk import Disk, mounted_disk
from tests.faults.failover.load import Load, run_load
from tests.faults.failover.server import Server, ServerEnded
from tests.polls import Background

DURABLE = {"fsync": "on"}
UNSAFE = [{"fsync": "off"}, {"fsync": "on", "synchronous_commit": "off", "wal_writer_delay": "10s"}]


@pytest.fixture
def small_disk() -> Iterator[Disk]:
    with mounted_disk(400) as new_disk:
        yield new_disk


@pytest.fixture
def server(template: Server, small_disk: Disk) -> Iterator[Server]:
    server = template.copy("power-cut", small_disk.mounted / "data")
    small_disk.flush()
    yield server
    server.kill()


def cut_power_under_load(server: Server, disk: Disk, background: Background, options: dict[str, str]) -> Load:
    server.start(options)
    with broker_process(server.dsn, log_level="error") as (broker, _), run_load(broker.base, background) as clients:
        clients.wait_for_more(200, 50)
        disk.cut_power()
    server.kill()
    disk.unmount()
    disk.mount()
    return clients


def test_power_cut_loses_nothing_acknowledged(
    server: Server, small_disk: Disk, background: Background, loop: Loop
) -> None:
    clients = cut_power_under_load(server, small_disk, background, DURABLE)
    server.start()
    assert clients.lost(server.open(loop)) == ([], [])
    server.stop()


@pytest.mark.parametrize("options", UNSAFE, ids=["fsync-off", "commit-async"])
def test_power_cut_without_flushing_loses_jobs(
    server: Server, small_disk: Disk, background: Background, loop: Loop, options: dict[str, str]
) -> None:
    """The controls: the test above can detect a loss."""
    clients = cut_power_under_load(server, small_disk, background, options)
    assert lost_jobs(server, clients, loop) > 0


def lost_jobs(server: Server, clients: Load, loop: Loop) -> int:
    """The number of lost jobs. A server that no longer starts has lost all of them."""
    try:
        server.start()
    except ServerEnded:
        return len(clients.enqueued)
    lost, _ = clients.lost(server.open(loop))
    server.stop()
    return len(lost)
