"""Like for like: a producer and a worker as a developer would write them in Python.

They have tasks, encoding, decoding and a handler per job.
"""

import asyncio
from collections.abc import Iterator

import msgspec

from bench.client import Client, Requests, connect
from bench.load.order import Figures, Job, Order
from bench.load.scripts import ClaimedJob, Settled, claim_body, count_settled
from bench.load.timing import Tally, run_for_seconds, run_to_end

HANDLERS = 8  # per connection of a worker: 4 connections make 32 callers


class Work(ClaimedJob):
    """A claimed job with the payload for its handler."""

    payload: dict[str, str]


class Claimed(msgspec.Struct):
    jobs: list[Work]
    settled: list[Settled]


_claimed = msgspec.json.Decoder(Claimed)


async def like_single(order: Order) -> Figures:
    """`connections` callers, each of which enqueues one job per call."""
    tally, requests = Tally(), Requests(order.key)
    clients = await connect(order.ports, [Client] * order.connections)

    async def call(client: Client) -> None:
        while not tally.over:
            (await client.send(requests.post("/jobs", msgspec.json.encode(Job())))).expect(201)
            tally.add(1)

    return await run_for_seconds(order, tally, [call(client) for client in clients])


async def like_drain(order: Order) -> Figures:
    """Drains the queue: each connection claims a batch and runs eight handlers at a time; its next
    claim settles that batch.
    """
    tally, requests = Tally(), Requests(order.key)
    clients = await connect(order.ports, [Client] * order.connections)

    async def work(client: Client) -> None:
        jobs: list[Work] = []
        while True:
            claim = _claimed.decode(
                (await client.send(requests.post("/claim", claim_body(order.batch, jobs)))).expect(200)
            )
            tally.add(count_settled(claim.settled, jobs))
            jobs = claim.jobs
            if not jobs:
                return
            await handle_all(iter(jobs))

    return await run_to_end(order, tally, [work(client) for client in clients])


async def handle_all(jobs: Iterator[Work]) -> None:
    async def caller() -> None:
        for job in jobs:
            await handle(job.payload)

    await asyncio.gather(*[caller() for _ in range(HANDLERS)])


async def handle(payload: dict[str, str]) -> None:
    """Does nothing, as the handlers of the peers."""
