"""The power is cut: what Postgres had only handed to the kernel is gone. Collected only where there is a disk whose plug can be pulled."""

from collections.abc import Iterator

import pytest

from tests.broker import broker_process
from tests.database import Loop
from tests.failover.disk import Disk, mounted_disk
from tests.failover.load import Load, run_load
from tests.failover.server import Server, ServerEnded
from tests.polls import Background

DURABLE = {"fsync": "on"}
LOSING = [{"fsync": "off"}, {"fsync": "on", "synchronous_commit": "off", "wal_writer_delay": "10s"}]


@pytest.fixture
def small_disk() -> Iterator[Disk]:
    with mounted_disk(400) as made:
        yield made


@pytest.fixture
def on_disk(template: Server, small_disk: Disk) -> Iterator[Server]:
    server = template.copy("plugged", small_disk.mounted / "data")
    small_disk.flush()
    yield server
    server.kill()


def cut_under_load(server: Server, plug: Disk, background: Background, options: dict[str, str]) -> Load:
    server.start(options)
    with broker_process(server.dsn, log_level="error") as (broker, _), run_load(broker.base, background) as clients:
        clients.more(200, 50)
        plug.cut_power()
    server.kill()
    plug.unmount()
    plug.mount()
    return clients


def test_power_cut_loses_nothing_acknowledged(
    on_disk: Server, small_disk: Disk, background: Background, loop: Loop
) -> None:
    clients = cut_under_load(on_disk, small_disk, background, DURABLE)
    on_disk.start()
    assert clients.lost(on_disk.open(loop)) == ([], [])
    on_disk.stop()


@pytest.mark.parametrize("options", LOSING, ids=["fsync-off", "commit-async"])
def test_power_cut_without_flushing_loses_jobs(
    on_disk: Server, small_disk: Disk, background: Background, loop: Loop, options: dict[str, str]
) -> None:
    """The controls: this test can see a loss."""
    clients = cut_under_load(on_disk, small_disk, background, options)
    assert lost_jobs(on_disk, clients, loop) > 0


def lost_jobs(server: Server, clients: Load, loop: Loop) -> int:
    """A server that does not start any more has lost all of them."""
    try:
        server.start()
    except ServerEnded:
        return len(clients.enqueued)
    lost, _ = clients.lost(server.open(loop))
    server.stop()
    return len(lost)
