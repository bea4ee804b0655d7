"""`python -m bench.load`: reads an order from standard input, carries it out, writes the figures to standard output."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import uvloop

from bench.client import Requests, Script, Scripted, connect
from bench.load import like, polls
from bench.load.order import Figures, Order
from bench.load.scripts import batch_worker, carrying_worker, filler, producer, single_worker, sizes
from bench.load.timing import Tally, for_a_time, to_the_end


async def enqueue(order: Order) -> Figures:
    tally, requests = Tally(), Requests(order.key)
    return await for_a_time(
        order, tally, await play(order, lambda: producer(tally, requests, order.batch), order.connections)
    )


async def drain(order: Order, worker: Callable[[Tally, Requests, int], Script]) -> Figures:
    tally, requests = Tally(), Requests(order.key)
    return await to_the_end(
        order, tally, await play(order, lambda: worker(tally, requests, order.batch), order.connections)
    )


async def fill(order: Order) -> Figures:
    left = sizes(order.jobs)
    await asyncio.gather(*await play(order, lambda: filler(left, Requests(order.key)), order.connections))
    return {"total": order.jobs}


async def play(order: Order, script: Callable[[], Script], connections: int) -> list["asyncio.Future[None]"]:
    played = await connect(order.ports, [lambda: Scripted(script())] * connections)
    return [one.done for one in played]


KINDS: dict[str, Callable[[Order], Awaitable[Figures]]] = {
    "enqueue": enqueue,
    "fill": fill,
    "singles": partial(drain, worker=lambda tally, requests, _batch: single_worker(tally, requests)),
    "batches": partial(drain, worker=batch_worker),
    "carried": partial(drain, worker=carrying_worker),
    "like_single": like.like_single,
    "like_drain": like.like_drain,
    "wake": polls.wake,
    "parked": polls.parked,
    "lone": polls.lone,
    "reads": polls.reads,
}


async def carry_out(order: Order) -> Figures:
    return await KINDS[order.kind](order)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    told = uvloop.run(carry_out(order))
    sys.stdout.buffer.write(msgspec.json.encode(told))


if __name__ == "__main__":
    main()
