"""Patroni with synchronous mode, under load: `make patroni`. Collected only when asked for, as it needs programs that are not ours."""

from collections.abc import Iterator

import pytest

from app.db import migrations
from tests.broker import broker_process
from tests.database import Loop
from tests.failover.load import run_load
from tests.failover.patroni import Patroni, start_patroni
from tests.failover.server import Account, Session
from tests.polls import Background


@pytest.fixture
def cluster(account: Account) -> Iterator[Patroni]:
    with start_patroni(account) as made:
        migrations.upgrade(made.dsn)
        yield made


def test_switchover_and_crash_lose_nothing_acknowledged(
    cluster: Patroni, background: Background, loop: Loop, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_process(cluster.dsn, log_level="error") as (broker, _), run_load(broker.base, background) as clients:
        clients.more(200, 50)
        cluster.switch_over()
        clients.more(200, 50)
        switched, clients.pause = clients.pause, 0.0
        leader = cluster.leader()
        assert leader is not None
        leader.kill()
        clients.more(200, 50)
        survivor = Session(cluster.dsn, loop)
    assert clients.lost(survivor) == ([], [])
    survivor.close()
    with capsys.disabled():
        print(
            f"\nPatroni: {len(clients.enqueued)} jobs, 0 lost; paused {switched:.1f} s by a switchover, {clients.pause:.1f} s by a crash"
        )
