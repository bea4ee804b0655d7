"""Patroni in synchronous mode, under load: `make patroni`.

Collected only on request, because it needs third-party programs.
"""

from collections.abc import Iterator

import pytest

from app.db import migrations
from tests.broker import broker_process
from tests.database import Loop
from tests.faults.failover.load import run_load
from tests.faults.failover.patroni import Patroni, start_patroni
from tests.faults.failover.server import Account, Session
from tests.polls import Background


@pytest.fixture
def cluster(account: Account) -> Iterator[Patroni]:
    with start_patroni(account) as nodes:
        migrations.upgrade(nodes.dsn)
        yield nodes


def test_switchover_and_crash_lose_nothing_acknowledged(
    cluster: Patroni, background: Background, loop: Loop, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_process(cluster.dsn, log_level="error") as (broker, _), run_load(broker.base, background) as clients:
        clients.wait_for_more(200, 50)
        cluster.switch_over()
        clients.wait_for_more(200, 50)
        switchover_pause, clients.longest_pause = clients.longest_pause, 0.0
        leader = cluster.leader()
        assert leader is not None
        leader.kill()
        clients.wait_for_more(200, 50)
        survivor = Session(cluster.dsn, loop)
    assert clients.lost(survivor) == ([], [])
    survivor.close()
    with capsys.disabled():
        print(
            f"\nPatroni: {len(clients.enqueued)} jobs, 0 lost; paused {switchover_pause:.1f} s by a switchover, "
            f"{clients.longest_pause:.1f} s by a crash"
        )
