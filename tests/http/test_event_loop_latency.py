"""The event loop serves /livez while any request runs, even the largest that is allowed.

/livez takes at most five times as long as without that request, in the same run. Time without a CPU
does not count (livez_prober.py). What counts is the slowest call

- during a request: the median of three repeats
- without a request: the second highest figure of many short periods, one after each request

So a single disturbance changes neither.
"""

import time
from collections.abc import Iterable, Iterator
from statistics import median

import pytest

from tests.api_client import Api
from tests.broker import broker_process
from tests.database import Loop, TestDatabase, create_database
from tests.http.large_requests import LargeRequest, add_queues, large_requests, requests_with_many_queues
from tests.http.livez_probes import Probes, probing

pytestmark = pytest.mark.slow

MAX_FACTOR = 5
REPEATS = 3
IDLE_SECONDS = 0.3


@pytest.fixture
def separate_database(postgres: str, loop: Loop, queue: str) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, f"loop latency {queue}"), loop)
    yield database
    database.close()


@pytest.fixture
def probed_api(separate_database: TestDatabase, queue: str) -> Iterator[tuple[Api, Probes]]:
    with (
        broker_process(separate_database.dsn, log_level="error") as (broker, process),
        probing(broker.base, process.pid) as probes,
    ):
        yield Api(broker.http, queue), probes


def measure(probes: Probes, request: LargeRequest) -> float:
    send, responses = request.prepare(), []
    slowest = probes.slowest(lambda: responses.append(send()))
    assert request.count(responses[0].json()) == request.expected, request.name
    return slowest


def measure_idle(probes: Probes) -> float:
    return probes.slowest(lambda: time.sleep(IDLE_SECONDS))


def too_slow(probes: Probes, requests: Iterable[LargeRequest]) -> dict[str, str]:
    """The requests that hold up /livez for too long, and how much longer than without them."""
    slowest: dict[str, float] = {}
    idle = [measure_idle(probes)]
    for request in requests:
        slowest[request.name] = median(measure(probes, request) for _ in range(REPEATS))
        idle.append(measure_idle(probes))
    baseline = sorted(idle)[-2]
    return {name: f"{took / baseline:.1f} times" for name, took in slowest.items() if took > MAX_FACTOR * baseline}


def test_livez_stays_fast_while_large_requests_run(
    probed_api: tuple[Api, Probes], separate_database: TestDatabase
) -> None:
    api, probes = probed_api
    assert too_slow(probes, large_requests(api, separate_database)) == {}


def test_livez_stays_fast_with_many_queues(probed_api: tuple[Api, Probes], separate_database: TestDatabase) -> None:
    api, probes = probed_api
    add_queues(api, separate_database)
    assert too_slow(probes, requests_with_many_queues(api, separate_database)) == {}
