"""Measures what each policy costs: round trips, buffers, WAL bytes and time per job.

It measures the path of a claim or an enqueue, and the group scheduler off that path. It uses the
product's own services on a separate Postgres with durable settings, and prints a table.
"""

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
from app.concurrency.queue_limits import SLICES_PER_WINDOW
from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from app.leases.schemas import Outcome, Scope, SentError
from app.queues.schemas import QueueConfig, RateLimit
from bench.cost import BATCH, OPTIONS
from bench.meter import Tally
from bench.scene import LIMITED, PLAIN, Json, PolicyBench, Size, job, policy_bench

HOUR = 3600
UNLIMITED = 1_000_000
NO_RULES = QueueConfig()
# calls between two aggregations of the statistics, which a background service does every second
CALLS_PER_AGGREGATION = 100
INSERT_USAGE = """
INSERT INTO rate_limit_usage (lane, at, count)
SELECT $1, now() - make_interval(secs => 0.01 * n), 1
FROM generate_series(1, $2::int) AS n
"""
HEAD = """
| per job | calls of | round trips | buffers | WAL bytes | ms | against none | off the path: round trips | WAL bytes |
|---|---|---|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """`path`: the measured calls. `baseline`: each time, the same call to a plain queue.
    `admissions`: the runs of the group scheduler.
    """

    name: str
    n: int
    path: Tally
    baseline: Tally
    admissions: Tally

    def without(self, warm_up: int) -> "Row":
        return self._replace(path=Tally(self.path[warm_up:]), baseline=Tally(self.baseline[warm_up:]))

    def to_markdown(self) -> str:
        round_trips, ms = self.path.per_call("round_trips") / self.n, self.path.per_call("seconds") * 1000 / self.n
        ratio = self.path.per_call("seconds") / self.baseline.per_call("seconds")
        figures = [
            f"{round_trips:.4g}",
            f"{self.path.per_job('buffers'):.1f}",
            f"{self.path.per_job('wal'):,.0f}",
            f"{ms:.3f}",
            f"{ratio:.2f}",
        ]
        off_path = (
            [f"{self.admissions.per_job('round_trips'):.2f}", f"{self.admissions.per_job('wal'):,.0f}"]
            if self.admissions
            else ["", ""]
        )
        return f"| {' | '.join([self.name, str(self.n), *figures, *off_path])} |"


# Claims


async def _nothing(_: PolicyBench) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """`fields`: of the job with this number. `arrange`: puts other jobs in the way of the claims."""

    name: str
    rules: QueueConfig = NO_RULES
    fields: Callable[[int], Json] = lambda _: {}
    arrange: Callable[[PolicyBench], Awaitable[None]] = _nothing


def _in_groups(groups: int) -> Callable[[int], Json]:
    return lambda number: {"group": f"group-{number % groups}"}


def _with_deadlines(_: int) -> Json:
    return {"expires_at": datetime.now(UTC) + timedelta(hours=1), "timeout_seconds": HOUR}


def _with_long_payload(_: int) -> Json:
    return {"payload": {"text": "x" * 1489}}


async def _many_running(bench: PolicyBench) -> None:
    await bench.enqueue_many([job() for _ in range(bench.size.running)])
    await bench.claim(LIMITED, bench.size.running)


async def _busy_group(bench: PolicyBench) -> None:
    await bench.enqueue_many([job(group="busy") for _ in range(bench.size.busy)])
    await bench.claim(LIMITED, 1)


async def _much_usage(bench: PolicyBench) -> None:
    await bench.db.rows(INSERT_USAGE, await bench.lane(), SLICES_PER_WINDOW)


async def _cooling_group(bench: PolicyBench) -> None:
    """The other jobs of the group are ready when the first one fails; then they become pending."""
    await bench.enqueue_many([job(group="cooling") for _ in range(bench.size.running)])
    (first,) = await bench.claim(LIMITED, 1)
    await bench.settle(
        [first], Outcome.FAIL, error=SentError(message="enough"), scope=Scope.GROUP, retry_after_seconds=HOUR
    )
    await bench.refresh()
    await bench.broker_services.rule_changes.run_once()


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
    Policy("rate per second", QueueConfig(rate=RateLimit(limit=UNLIMITED, per_seconds=1))),
    Policy(
        "rate per hour, a full span",
        QueueConfig(rate=RateLimit(limit=UNLIMITED, per_seconds=HOUR)),
        arrange=_much_usage,
    ),
    Policy("a group cooling down", arrange=_cooling_group),
    Policy("expires_at and timeout_seconds", fields=_with_deadlines),
    Policy("none, payload of 1,500 bytes", fields=_with_long_payload),
    Policy("max_running, payload of 1,500 bytes", QueueConfig(max_running=1000), _with_long_payload),
)


async def claims(bench: PolicyBench, policy: Policy, n: int) -> Row:
    """Each time: claim, complete, and admit jobs to the free slots. Jobs are also admitted after each enqueue."""
    row = Row(f"claim: {policy.name}", n, Tally(), Tally(), Tally())
    total = bench.size.calls(n) * n
    await bench.configure(policy.rules)
    await policy.arrange(bench)
    await bench.run_group_scheduler()
    await bench.enqueue_many([job(PLAIN) for _ in range(total)])
    await bench.enqueue_many([job(**policy.fields(number)) for number in range(total)], row.admissions)
    await bench.db.rows("ANALYZE")
    for _ in range(bench.size.calls(n)):
        await bench.claim_and_complete(PLAIN, n, row.baseline)
        await bench.claim_and_complete(LIMITED, n, row.path)
        await bench.run_group_scheduler(row.admissions)
    return row.without(bench.size.warm_up)


# Enqueues


@dataclass(frozen=True, slots=True)
class EnqueueCase:
    """`fields`: of the job with this number, in a call with this parent."""

    name: str
    rules: QueueConfig = NO_RULES
    fields: Callable[[int, UUID], Json] = lambda _number, _parent: {}


ENQUEUE_CASES = (
    EnqueueCase("none"),
    EnqueueCase("max_waiting", QueueConfig(max_waiting=UNLIMITED)),
    EnqueueCase("unique, a key per job", fields=lambda number, _: {"unique": {"key": f"key-{number}"}}),
    EnqueueCase("depends_on, a parent per call", fields=lambda _, parent: {"depends_on": [parent]}),
)


async def enqueues(bench: PolicyBench, case: EnqueueCase, n: int) -> Row:
    row = Row(f"enqueue: {case.name}", n, Tally(), Tally(), Tally())
    await bench.configure(case.rules)
    parents = await bench.enqueue_many([job(PLAIN) for _ in range(bench.size.calls(n))])
    await bench.db.rows("ANALYZE")
    for call, parent in enumerate(parents):
        if call % CALLS_PER_AGGREGATION == 0:
            await bench.broker_services.stats.aggregate()
        await bench.refresh()
        numbers = range(call * n, (call + 1) * n)
        await bench.meter.measure(row.baseline, n, partial(bench.enqueue, [job(PLAIN) for _ in numbers]))
        await bench.meter.measure(
            row.path, n, partial(bench.enqueue, [job(**case.fields(number, parent)) for number in numbers])
        )
    return row.without(bench.size.warm_up)


async def measure(dsn: str, size: Size) -> list[Row]:
    rows: list[Row] = []
    for case in (*POLICIES, *ENQUEUE_CASES):
        for n in (1, BATCH):
            print(
                f"{'claim' if isinstance(case, Policy) else 'enqueue'}: {case.name}, calls of {n}",
                file=sys.stderr,
                flush=True,
            )
            async with policy_bench(dsn, size) as bench:
                rows.append(await (claims(bench, case, n) if isinstance(case, Policy) else enqueues(bench, case, n)))
    return rows


def report(rows: Sequence[Row]) -> None:
    print(HEAD.strip(), *(row.to_markdown() for row in rows), sep="\n")


def parse_options() -> Size:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--singles", type=int, default=500, help="measured calls of one job, for each policy")
    parser.add_argument("--batches", type=int, default=30, help="measured calls of 100 jobs")
    return Size(**vars(parser.parse_args()))


def main() -> None:
    size = parse_options()
    log.configure("error")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres", options=OPTIONS) as dsn:
            migrations.upgrade(dsn)
            report(asyncio.run(measure(dsn, size)))


if __name__ == "__main__":
    main()
