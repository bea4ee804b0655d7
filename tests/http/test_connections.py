"""The limit of connections, clients that disconnect, and metrics of connections."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.http.conftest import Connect, connections
from tests.http.raw_connection import GET, post
from tests.polls import metric_value, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]


def test_connection_over_the_limit_is_rejected_until_another_one_closes(
    low_limit_broker: RunningBroker, eventually: Eventually
) -> None:
    low_limit_broker.http.close()  # it would be one of the ten
    with connections(low_limit_broker.base) as connect:
        first, *_ = [connect() for _ in range(10)]
        first.send(GET)
        assert first.response().status == 200
        rejected = connect().error_response()
        assert (rejected.status, rejected.json()["outcome"], rejected.headers["retry-after"]) == (503, "not_done", "1")
        first.close()

        def is_served() -> bool:
            with closing(connect()) as connection:
                connection.send(GET)
                return connection.response().status == 200

        eventually(is_served)


def test_connections_far_over_the_limit_are_closed(low_limit_broker: RunningBroker, eventually: Eventually) -> None:
    """Rejected connections that stay open count too: otherwise their number had no limit."""
    with connections(low_limit_broker.base) as connect:
        open_connections = [connect() for _ in range(40)]
        ends = [connection.socket.recv(1) for connection in open_connections[-5:]]
        assert ends == [b""] * 5


def test_disconnect_releases_a_parked_poll_with_another_request_pipelined(
    broker: RunningBroker, api: Api, connect: Connect, eventually: Eventually
) -> None:
    """The request that was parsed last is not the active one."""
    connection = connect()
    connection.send(post("/claim", b'{"queues": ["%s"], "wait_seconds": 25}' % api.queue.encode()) + GET)
    eventually(lambda: parked_polls(api.http) == 1)
    connection.close()
    eventually(lambda: parked_polls(api.http) == 0)
    assert api.job(api.enqueue()["id"])["deliveries"] == 0


@pytest.mark.parametrize("pipelined_bytes", [70_000, 250_000])
def test_job_is_not_lost_to_a_client_that_disconnected_with_unread_pipelined_input(
    api: Api, connect: Connect, eventually: Eventually, pipelined_bytes: int
) -> None:
    """With that much pipelined input the broker stops reading and misses the disconnect."""
    connection = connect()
    connection.send(post("/claim", b'{"queues": ["%s"], "wait_seconds": 25, "lease_seconds": 30}' % api.queue.encode()))
    eventually(lambda: parked_polls(api.http) == 1)
    connection.send(post("/jobs/batch", b" " * pipelined_bytes))
    connection.close()
    job = api.enqueue()
    assert api.claim_one(wait_seconds=20)["id"] == job["id"]
    assert api.job(job["id"])["crashes"] == 0


@pytest.mark.parametrize("size", [70_000, 100_000, 200_000])
def test_claim_whose_large_body_arrives_at_once_gets_jobs(api: Api, connect: Connect, size: int) -> None:
    """A large body stops the reading of the connection, and a client that is not read counts as disconnected."""
    ids = api.enqueue_many(5)
    connection = connect()
    claimed = []
    for _ in ids:
        connection.send(post("/claim", b'{"queues": ["%s"]}' % api.queue.encode() + b" " * size))
        claimed += connection.response().json()["jobs"]
    assert [job["id"] for job in claimed] == ids


@pytest.mark.slow
def test_header_timeout_of_a_pipelined_request_leaves_the_response_before_it_intact(
    short_timeout_broker: RunningBroker, connect_short_timeout: Connect
) -> None:
    connection = connect_short_timeout()
    connection.send(post("/claim", b'{"queues": ["always-empty"], "wait_seconds": 2}') + GET[:20])
    claimed, late = connection.responses()
    assert (claimed.status, late.status) == (200, 408)


def test_half_closed_client_counts_as_disconnected(
    broker: RunningBroker, api: Api, connect: Connect, eventually: Eventually
) -> None:
    """The broker may still do what the client requested."""
    connection = connect()
    before = metric_value(api.http, "connections")
    connection.send(post("/claim", b'{"queues": ["%s"], "wait_seconds": 25}' % api.queue.encode()))
    eventually(lambda: parked_polls(api.http) == 1)
    connection.socket.shutdown(1)
    eventually(lambda: parked_polls(api.http) == 0)
    assert connection.responses() == []
    eventually(lambda: metric_value(api.http, "connections") <= before)


def test_rejected_requests_are_counted(broker: RunningBroker, http: Any, connect: Connect) -> None:
    connection = connect()
    before = metric_value(broker.http, 'edge_refusals_total{code="bad_request"}')
    connection.send(b"nonsense\r\n\r\n")
    connection.error_response()
    assert metric_value(broker.http, 'edge_refusals_total{code="bad_request"}') == before + 1


def test_event_loop_lag_is_a_metric(broker: RunningBroker, eventually: Eventually) -> None:
    before = metric_value(broker.http, "loop_lag_seconds_count")
    eventually(lambda: metric_value(broker.http, "loop_lag_seconds_count") > before)
