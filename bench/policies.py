"""What each policy costs: round trips, buffers, WAL bytes and time per job, on the path of a claim or an enqueue; and what is done off it
to give turns. Runs the product's own rooms on a Postgres of its own with durable settings, and prints a table."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from app import log
from app.concurrency.queue_limits import SLICES
from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from app.leases.schemas import Outcome, Scope, SentError
from app.queues.schemas import QueueConfig, RateLimit
from bench.cost import BATCH, OPTIONS
from bench.meter import Tally
from bench.scene import PLAIN, RULED, Json, Scene, Size, job, scene

HOUR = 3600
MANY = 1_000_000
NO_RULES = QueueConfig()
FOLD = 100  # calls between two folds of the statistics, which a chore does every second
PASSES = """
INSERT INTO passes (lane, at, n)
SELECT $1, now() - make_interval(secs => 0.01 * n), 1
FROM generate_series(1, $2::int) AS n
"""
HEAD = """
| per job | calls of | round trips | buffers | WAL bytes | ms | against none | off the path: round trips | WAL bytes |
|---|---|---|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """`path`: the calls that are measured. `beside`: each time, the same call to a plain queue. `turns`: what was done off the path."""

    name: str
    n: int
    path: Tally
    beside: Tally
    group_scheduler: Tally

    def without(self, warm_up: int) -> "Row":
        return self._replace(path=Tally(self.path[warm_up:]), beside=Tally(self.beside[warm_up:]))

    def written(self) -> str:
        trips, ms = self.path.per_call("round_trips") / self.n, self.path.per_call("seconds") * 1000 / self.n
        against = self.path.per_call("seconds") / self.beside.per_call("seconds")
        figures = [
            f"{trips:.4g}",
            f"{self.path.per_job('buffers'):.1f}",
            f"{self.path.per_job('wal'):,.0f}",
            f"{ms:.3f}",
            f"{against:.2f}",
        ]
        off = (
            [f"{self.group_scheduler.per_job('round_trips'):.2f}", f"{self.group_scheduler.per_job('wal'):,.0f}"]
            if self.group_scheduler
            else ["", ""]
        )
        return f"| {' | '.join([self.name, str(self.n), *figures, *off])} |"


# Claims


async def _nothing(_: Scene) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """`fields`: of the job with this number. `arrange`: what is in the way of the claims."""

    name: str
    rules: QueueConfig = NO_RULES
    fields: Callable[[int], Json] = lambda _: {}
    arrange: Callable[[Scene], Awaitable[None]] = _nothing


def _in_groups(groups: int) -> Callable[[int], Json]:
    return lambda number: {"group": f"group-{number % groups}"}


def _with_deadlines(_: int) -> Json:
    return {"expires_at": datetime.now(UTC) + timedelta(hours=1), "timeout_seconds": HOUR}


def _with_long_payload(_: int) -> Json:
    return {"payload": {"text": "x" * 1489}}


async def _many_running(on: Scene) -> None:
    await on.enqueue_many([job() for _ in range(on.size.running)])
    await on.claim(RULED, on.size.running)


async def _busy_group(on: Scene) -> None:
    await on.enqueue_many([job(group="busy") for _ in range(on.size.busy)])
    await on.claim(RULED, 1)


async def _many_passes(on: Scene) -> None:
    await on.db.rows(PASSES, await on.lane(), SLICES)


async def _group_at_rest(on: Scene) -> None:
    """Its other jobs are ready when the first one fails; then they are parked."""
    await on.enqueue_many([job(group="tired") for _ in range(on.size.running)])
    (first,) = await on.claim(RULED, 1)
    await on.settle(
        [first], Outcome.FAIL, error=SentError(message="enough"), scope=Scope.GROUP, retry_after_seconds=HOUR
    )
    await on.look()
    await on.broker_services.rule_changes.run_once()


POLICIES = (
    Policy("none"),
    Policy("max_running, few running", QueueConfig(max_running=1000)),
    Policy("max_running, 900 running", QueueConfig(max_running=1000), arrange=_many_running),
    Policy("1 per group, 100 groups", QueueConfig(max_running_per_group=1), _in_groups(100)),
    Policy(
        "the same behind 10,000 jobs of a busy group",
        QueueConfig(max_running_per_group=1),
        _in_groups(100),
        _busy_group,
    ),
    Policy("10 per group, 100 groups", QueueConfig(max_running_per_group=10), _in_groups(100)),
    Policy("fair, 10 groups", QueueConfig(fair=True), _in_groups(10)),
    Policy("rate per second", QueueConfig(rate=RateLimit(limit=MANY, per_seconds=1))),
    Policy(
        "rate per hour, a full span", QueueConfig(rate=RateLimit(limit=MANY, per_seconds=HOUR)), arrange=_many_passes
    ),
    Policy("a group at rest", arrange=_group_at_rest),
    Policy("expires_at and timeout_seconds", fields=_with_deadlines),
    Policy("none, payload of 1,500 bytes", fields=_with_long_payload),
    Policy("max_running, payload of 1,500 bytes", QueueConfig(max_running=1000), _with_long_payload),
)


async def claims(on: Scene, policy: Policy, n: int) -> Row:
    """Each time: claim, complete, and give the turns that have become free. Turns are also given after each enqueue."""
    row = Row(f"claim: {policy.name}", n, Tally(), Tally(), Tally())
    total = on.size.calls(n) * n
    await on.configure(policy.rules)
    await policy.arrange(on)
    await on.give_turns()
    await on.enqueue_many([job(PLAIN) for _ in range(total)])
    await on.enqueue_many([job(**policy.fields(number)) for number in range(total)], row.group_scheduler)
    await on.db.rows("ANALYZE")
    for _ in range(on.size.calls(n)):
        await on.claim_and_complete(PLAIN, n, row.beside)
        await on.claim_and_complete(RULED, n, row.path)
        await on.give_turns(row.group_scheduler)
    return row.without(on.size.warm_up)


# Enqueues


@dataclass(frozen=True, slots=True)
class Entering:
    """`fields`: of the job with this number, in a call that has this parent."""

    name: str
    rules: QueueConfig = NO_RULES
    fields: Callable[[int, UUID], Json] = lambda _number, _parent: {}


ENTERINGS = (
    Entering("none"),
    Entering("max_waiting", QueueConfig(max_waiting=MANY)),
    Entering("unique, a key per job", fields=lambda number, _: {"unique": {"key": f"key-{number}"}}),
    Entering("depends_on, a parent per call", fields=lambda _, parent: {"depends_on": [parent]}),
)


async def enqueues(on: Scene, entering: Entering, n: int) -> Row:
    row = Row(f"enqueue: {entering.name}", n, Tally(), Tally(), Tally())
    await on.configure(entering.rules)
    parents = await on.enqueue_many([job(PLAIN) for _ in range(on.size.calls(n))])
    await on.db.rows("ANALYZE")
    for call, parent in enumerate(parents):
        if call % FOLD == 0:
            await on.broker_services.stats.aggregate()
        await on.look()
        numbers = range(call * n, (call + 1) * n)
        await on.meter.measure(row.beside, n, partial(on.enqueue, [job(PLAIN) for _ in numbers]))
        await on.meter.measure(
            row.path, n, partial(on.enqueue, [job(**entering.fields(number, parent)) for number in numbers])
        )
    return row.without(on.size.warm_up)


async def measure(dsn: str, size: Size) -> list[Row]:
    rows: list[Row] = []
    for case in (*POLICIES, *ENTERINGS):
        for n in (1, BATCH):
            print(
                f"{'claim' if isinstance(case, Policy) else 'enqueue'}: {case.name}, calls of {n}",
                file=sys.stderr,
                flush=True,
            )
            async with scene(dsn, size) as on:
                rows.append(await (claims(on, case, n) if isinstance(case, Policy) else enqueues(on, case, n)))
    return rows


def report(rows: Sequence[Row]) -> None:
    print(HEAD.strip(), *(row.written() for row in rows), sep="\n")


def options() -> Size:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--singles", type=int, default=500, help="calls of one job that are measured, for each policy")
    parser.add_argument("--batches", type=int, default=30, help="calls of 100 jobs")
    return Size(**vars(parser.parse_args()))


def main() -> None:
    size = options()
    log.configure("error")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres", options=OPTIONS) as dsn:
            migrations.upgrade(dsn)
            report(asyncio.run(measure(dsn, size)))


if __name__ == "__main__":
    main()
