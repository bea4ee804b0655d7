"""Parked polls: how fast an enqueued job reaches one of them, and what thousands of them cost. And how long a lone request takes."""

import asyncio
import resource
import time
from statistics import quantiles

import msgspec

from bench.client import Answer, Client, Exchange, Requests, connect
from bench.load.order import QUEUE, Figures, Order, one_job
from bench.load.scripts import Claimed
from bench.machine import cpu_of, memory_of

WAIT_SECONDS = 60  # the server must allow it; it takes off up to a tenth
POLL = b'{"queues":["%b"],"wait_seconds":%d,"worker_id":"bench"}' % (QUEUE.encode(), WAIT_SECONDS)
SETTLING_SECONDS = 3.0  # what so many new polls leave to be done is not what they cost while they wait

_claimed = msgspec.json.Decoder(Claimed)


class Poll(Exchange):
    """Parks, tells when it has a job, completes it, parks again."""

    def __init__(self, requests: Requests, arrived: "asyncio.Queue[float]") -> None:
        super().__init__()
        self._requests = requests
        self._arrived = arrived
        self._completing = False

    def park(self) -> None:
        self.write(self._requests.post("/claim", POLL))

    def answered(self, answer: Answer) -> None:
        at = time.perf_counter()
        body = answer.expect(200)
        if self._completing:
            self._completing = False
            self._arrived.put_nowait(at)
            self.park()
        elif jobs := _claimed.decode(body).jobs:
            self._arrived.put_nowait(at)
            self._completing = True
            token = b'{"lease_token":"%b"}' % jobs[0].lease_token.encode()
            self.write(self._requests.post(f"/jobs/{jobs[0].id}/complete", token))
        else:
            self.park()


async def wake(order: Order) -> Figures:
    """`connections` polls on the last port; on the first `jobs` are enqueued, one at a time: from sent to answered, and to in hand."""
    arrived: asyncio.Queue[float] = asyncio.Queue()
    await _park(order, arrived)
    (producer,) = await connect(order.ports[:1], [Client])
    request = Requests(order.key).post("/jobs", one_job())
    answers, arrivals = [], []
    for _ in range(order.jobs):
        sent = time.perf_counter()
        (await producer.send(request)).expect(201)
        answers.append(time.perf_counter() - sent)
        arrivals.append(await _next(arrived) - sent)
        await _next(arrived)  # it is completed, and the poll parks again
    return _percentiles("answer", answers) | _percentiles("arrival", arrivals) | {"samples": order.jobs}


async def _next(arrived: "asyncio.Queue[float]") -> float:
    return await asyncio.wait_for(arrived.get(), 30)


async def parked(order: Order) -> Figures:
    """What `connections` parked polls cost the server: CPU over some seconds, and memory."""
    await _ask_a_little(order)
    before, idle = memory_of(*order.server), await _cpu_share(order)
    await _park(order, asyncio.Queue())
    grown, busy = memory_of(*order.server) - before, await _cpu_share(order)
    return {"polls": order.connections, "idle_cpu": idle, "cpu": busy, "bytes": grown / order.connections}


async def _ask_a_little(order: Order) -> None:
    """The first requests make a server load code and fill its caches: that is not the polls' memory."""
    for client in await connect(order.ports[-1:], [Client] * 8):
        (await client.send(Requests(order.key).post("/claim", b'{"queues":["%b"]}' % QUEUE.encode()))).expect(200)
        client.close()


async def _cpu_share(order: Order) -> float:
    """Of one core."""
    await asyncio.sleep(SETTLING_SECONDS)
    began, used = time.perf_counter(), cpu_of(*order.server)
    await asyncio.sleep(order.seconds)
    return (cpu_of(*order.server) - used) / (time.perf_counter() - began)


async def lone(order: Order) -> Figures:
    """One connection, `jobs` requests, one after the other."""
    (client,) = await connect(order.ports, [Client])
    request = Requests(order.key).post("/jobs", one_job())
    taken = []
    for _ in range(order.jobs):
        sent = time.perf_counter()
        (await client.send(request)).expect(201)
        taken.append(time.perf_counter() - sent)
    return _percentiles("answer", taken[order.jobs // 10 :])


async def reads(order: Order) -> Figures:
    """GETs that operators make, `jobs` of each, in turn."""
    (client,) = await connect(order.ports, [Client])
    paths = {"stats": "/stats", "queue_stats": f"/queues/{QUEUE}/stats", "metrics": "/metrics"}
    taken: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(order.jobs):
        for name, path in paths.items():
            sent = time.perf_counter()
            (await client.send(Requests(order.key).get(path))).expect(200)
            taken[name].append(time.perf_counter() - sent)
    return {name: value for kind, times in taken.items() for name, value in _percentiles(kind, times).items()}


async def _park(order: Order, arrived: "asyncio.Queue[float]") -> list[Poll]:
    """Polls on the last port. Returns when the server has them all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    requests = Requests(order.key)
    polls = await connect(order.ports[-1:], [lambda: Poll(requests, arrived)] * order.connections)
    for poll in polls:
        poll.park()
    (asking,) = await connect(order.ports[-1:], [Client])
    while await _parked_there(asking, requests) < order.connections:  # noqa: ASYNC110 - only the server knows, and it has to be asked
        await asyncio.sleep(0.05)
    asking.close()
    return polls


async def _parked_there(asking: Client, requests: Requests) -> float:
    told = (await asking.send(requests.get("/metrics"))).expect(200).decode()
    return float(next(line for line in told.splitlines() if line.startswith("longshore_polls_parked ")).split()[1])


def _percentiles(name: str, seconds: list[float]) -> Figures:
    cuts = quantiles(seconds, n=100)
    return {f"{name}_p50_ms": cuts[49] * 1000, f"{name}_p99_ms": cuts[98] * 1000}
