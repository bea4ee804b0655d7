"""Parked polls: how fast an enqueued job reaches one of them, and what thousands of them cost.

Also: how long a lone request takes.
"""

import asyncio
import resource
import time
from statistics import quantiles

import msgspec

from bench.client import Client, HttpConnection, Requests, Response, connect
from bench.load.order import QUEUE, Figures, Order, job_body
from bench.load.scripts import Claimed
from bench.machine import cpu_of, memory_of

WAIT_SECONDS = 60  # the server must allow it; it subtracts up to a tenth
POLL = b'{"queues":["%b"],"wait_seconds":%d,"worker_id":"bench"}' % (QUEUE.encode(), WAIT_SECONDS)
CALM_SECONDS = 3.0  # the work that thousands of new polls cause is not part of the cost of waiting polls

_claimed = msgspec.json.Decoder(Claimed)


class Poll(HttpConnection):
    """Parks, reports when it has a job, completes it, parks again."""

    def __init__(self, requests: Requests, arrived: "asyncio.Queue[float]") -> None:
        super().__init__()
        self._requests = requests
        self._arrived = arrived
        self._completing = False

    def park(self) -> None:
        self.write(self._requests.post("/claim", POLL))

    def on_response(self, response: Response) -> None:
        arrived_at = time.perf_counter()
        body = response.expect(200)
        if self._completing:
            self._completing = False
            self._arrived.put_nowait(arrived_at)
            self.park()
        elif jobs := _claimed.decode(body).jobs:
            self._arrived.put_nowait(arrived_at)
            self._completing = True
            token = b'{"lease_token":"%b"}' % jobs[0].lease_token.encode()
            self.write(self._requests.post(f"/jobs/{jobs[0].id}/complete", token))
        else:
            self.park()


async def wake(order: Order) -> Figures:
    """Parks `connections` polls on the last port, and enqueues `jobs` on the first, one at a time.

    Measures from the request to its response, and to the arrival of the job.
    """
    arrived: asyncio.Queue[float] = asyncio.Queue()
    await _park(order, arrived)
    (producer,) = await connect(order.ports[:1], [Client])
    request = Requests(order.key).post("/jobs", job_body())
    answers, arrivals = [], []
    for _ in range(order.jobs):
        sent = time.perf_counter()
        (await producer.send(request)).expect(201)
        answers.append(time.perf_counter() - sent)
        arrivals.append(await _next_arrival(arrived) - sent)
        await _next_arrival(arrived)  # the job is completed, and the poll parks again
    return _percentiles("answer", answers) | _percentiles("arrival", arrivals) | {"samples": order.jobs}


async def _next_arrival(arrived: "asyncio.Queue[float]") -> float:
    return await asyncio.wait_for(arrived.get(), 30)


async def parked(order: Order) -> Figures:
    """Measures what `connections` parked polls cost the server: CPU over some seconds, and memory."""
    await _warm_up_server(order)
    before, idle = memory_of(*order.server), await _cpu_share(order)
    await _park(order, asyncio.Queue())
    grown, busy = memory_of(*order.server) - before, await _cpu_share(order)
    return {"polls": order.connections, "idle_cpu": idle, "cpu": busy, "bytes": grown / order.connections}


async def _warm_up_server(order: Order) -> None:
    """Sends a few requests: the first ones make a server load code and fill its caches, which is
    not the memory of polls.
    """
    for client in await connect(order.ports[-1:], [Client] * 8):
        (await client.send(Requests(order.key).post("/claim", b'{"queues":["%b"]}' % QUEUE.encode()))).expect(200)
        client.close()


async def _cpu_share(order: Order) -> float:
    """Share of one core."""
    await asyncio.sleep(CALM_SECONDS)
    began, used = time.perf_counter(), cpu_of(*order.server)
    await asyncio.sleep(order.seconds)
    return (cpu_of(*order.server) - used) / (time.perf_counter() - began)


async def lone(order: Order) -> Figures:
    """Sends `jobs` requests on one connection, one after the other."""
    (client,) = await connect(order.ports, [Client])
    request = Requests(order.key).post("/jobs", job_body())
    durations = []
    for _ in range(order.jobs):
        sent = time.perf_counter()
        (await client.send(request)).expect(201)
        durations.append(time.perf_counter() - sent)
    return _percentiles("answer", durations[order.jobs // 10 :])


async def reads(order: Order) -> Figures:
    """Sends the GETs of operators, `jobs` of each, in turn."""
    (client,) = await connect(order.ports, [Client])
    paths = {"stats": "/stats", "queue_stats": f"/queues/{QUEUE}/stats", "metrics": "/metrics"}
    durations: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(order.jobs):
        for name, path in paths.items():
            sent = time.perf_counter()
            (await client.send(Requests(order.key).get(path))).expect(200)
            durations[name].append(time.perf_counter() - sent)
    return {name: value for kind, times in durations.items() for name, value in _percentiles(kind, times).items()}


async def _park(order: Order, arrived: "asyncio.Queue[float]") -> list[Poll]:
    """Parks polls on the last port. Returns when the server has all of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    requests = Requests(order.key)
    polls = await connect(order.ports[-1:], [lambda: Poll(requests, arrived)] * order.connections)
    for poll in polls:
        poll.park()
    (observer,) = await connect(order.ports[-1:], [Client])
    while await _parked_count(observer, requests) < order.connections:  # noqa: ASYNC110 - only the server knows the number
        await asyncio.sleep(0.05)
    observer.close()
    return polls


async def _parked_count(observer: Client, requests: Requests) -> float:
    text = (await observer.send(requests.get("/metrics"))).expect(200).decode()
    return float(next(line for line in text.splitlines() if line.startswith("longshore_polls_parked ")).split()[1])


def _percentiles(name: str, seconds: list[float]) -> Figures:
    cuts = quantiles(seconds, n=100)
    return {f"{name}_p50_ms": cuts[49] * 1000, f"{name}_p99_ms": cuts[98] * 1000}
