"""Connections: as many as may be, clients that leave, and what an end of the process does to them."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.api import Api
from tests.broker import RunningBroker
from tests.edge.conftest import Connect, connections
from tests.edge.raw import GET, post
from tests.polls import counted, parked

Eventually = Callable[[Callable[[], Any]], Any]


def test_one_connection_too_many_is_told_so_and_room_that_is_left_is_used(
    narrow_broker: RunningBroker, eventually: Eventually
) -> None:
    narrow_broker.http.close()  # it would be one of the ten
    with connections(narrow_broker.base) as connect:
        first, *_ = [connect() for _ in range(10)]
        first.send(GET)
        assert first.answer().status == 200
        refused = connect().refusal()
        assert (refused.status, refused.json()["outcome"], refused.headers["retry-after"]) == (503, "not_done", "1")
        first.close()

        def is_served() -> bool:
            with closing(connect()) as raw:
                raw.send(GET)
                return raw.answer().status == 200

        eventually(is_served)


def test_far_too_many_connections_are_cut(narrow_broker: RunningBroker, eventually: Eventually) -> None:
    """Those that were told and do not leave count too: else they were without limit."""
    with connections(narrow_broker.base) as connect:
        rude = [connect() for _ in range(40)]
        ends = [raw.socket.recv(1) for raw in rude[-5:]]
        assert ends == [b""] * 5


def test_the_poll_of_a_client_that_left_is_released_though_another_request_followed_it(
    broker: RunningBroker, api: Api, connect: Connect, eventually: Eventually
) -> None:
    """The request that was read last is not the one that is being answered."""
    raw = connect()
    raw.send(post("/claim", b'{"queues": ["%s"], "wait_seconds": 25}' % api.queue.encode()) + GET)
    eventually(lambda: parked(api.http) == 1)
    raw.close()
    eventually(lambda: parked(api.http) == 0)
    assert api.job(api.enqueue()["id"])["deliveries"] == 0


@pytest.mark.parametrize("ahead", [70_000, 250_000])
def test_a_job_is_not_lost_on_a_client_that_left_with_much_unread(
    api: Api, connect: Connect, eventually: Eventually, ahead: int
) -> None:
    """We do not read on while that much has been sent ahead, and hear nothing of its end."""
    raw = connect()
    raw.send(post("/claim", b'{"queues": ["%s"], "wait_seconds": 25, "lease_seconds": 30}' % api.queue.encode()))
    eventually(lambda: parked(api.http) == 1)
    raw.send(post("/jobs/batch", b" " * ahead))
    raw.close()
    job = api.enqueue()
    assert api.claim_one(wait_seconds=20)["id"] == job["id"]
    assert api.job(job["id"])["crashes"] == 0


def test_a_request_that_comes_late_does_not_disturb_the_answer_before_it(
    hasty_broker: RunningBroker, hasty: Connect
) -> None:
    raw = hasty()
    raw.send(post("/claim", b'{"queues": ["nobody-fills-this"], "wait_seconds": 2}') + GET[:20])
    claimed, late = raw.answers()
    assert (claimed.status, late.status) == (200, 408)


def test_half_closed_clients_have_left(
    broker: RunningBroker, api: Api, connect: Connect, eventually: Eventually
) -> None:
    """What they asked for may be done all the same."""
    raw = connect()
    before = counted(api.http, "connections")
    raw.send(post("/claim", b'{"queues": ["%s"], "wait_seconds": 25}' % api.queue.encode()))
    eventually(lambda: parked(api.http) == 1)
    raw.socket.shutdown(1)
    eventually(lambda: parked(api.http) == 0)
    assert raw.answers() == []
    eventually(lambda: counted(api.http, "connections") <= before)


def test_refusals_are_counted(broker: RunningBroker, http: Any, connect: Connect) -> None:
    raw = connect()
    before = counted(broker.http, 'edge_refusals_total{code="bad_request"}')
    raw.send(b"nonsense\r\n\r\n")
    raw.refusal()
    assert counted(broker.http, 'edge_refusals_total{code="bad_request"}') == before + 1


def test_how_late_the_loop_is_can_be_seen(broker: RunningBroker, eventually: Eventually) -> None:
    before = counted(broker.http, "loop_lag_seconds_count")
    eventually(lambda: counted(broker.http, "loop_lag_seconds_count") > before)
