"""`python -m bench.load`: reads an order from standard input, runs it, and writes the figures to standard output."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import uvloop

from bench.client import Requests, Script, ScriptedConnection, connect
from bench.load import like, polls
from bench.load.order import Figures, Order
from bench.load.scripts import batch_sizes, batch_worker, carrying_worker, filler, producer, single_worker
from bench.load.timing import Tally, run_for_seconds, run_to_end


async def enqueue(order: Order, *, mixed: bool = False) -> Figures:
    tally, requests = Tally(), Requests(order.key)
    scripts = await run_scripts(order, lambda: producer(tally, requests, order.batch, mixed=mixed), order.connections)
    return await run_for_seconds(order, tally, scripts)


async def drain(order: Order, worker: Callable[[Tally, Requests, int], Script]) -> Figures:
    tally, requests = Tally(), Requests(order.key)
    return await run_to_end(
        order, tally, await run_scripts(order, lambda: worker(tally, requests, order.batch), order.connections)
    )


async def fill(order: Order) -> Figures:
    remaining_sizes = batch_sizes(order.jobs)
    await asyncio.gather(
        *await run_scripts(order, lambda: filler(remaining_sizes, Requests(order.key)), order.connections)
    )
    return {"total": order.jobs}


async def run_scripts(order: Order, script: Callable[[], Script], connections: int) -> list["asyncio.Future[None]"]:
    connections_made = await connect(order.ports, [lambda: ScriptedConnection(script())] * connections)
    return [connection.done for connection in connections_made]


KINDS: dict[str, Callable[[Order], Awaitable[Figures]]] = {
    "enqueue": enqueue,
    "enqueue_mixed": partial(enqueue, mixed=True),
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


async def run_order(order: Order) -> Figures:
    return await KINDS[order.kind](order)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    figures = uvloop.run(run_order(order))
    sys.stdout.buffer.write(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
