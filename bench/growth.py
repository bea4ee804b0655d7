"""`make bench-growth`: calculates what 100 to 1,000,000 jobs per second need, from the measured
cost of a job.

This is a calculation, not a measurement. Every assumption has a name here and is printed with the
result.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.db.lanes import LANES_PER_QUEUE
from app.settings import Settings
from bench.report import RESULTS, Report, Row

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "operations" / "capacity.md"
BEGIN, END = "<!-- begin: make bench-growth -->", "<!-- end: make bench-growth -->"

RATES = (100, 1_000, 10_000, 100_000, 1_000_000)
# Planned use of a core, a disk or a lane. The rest is for peaks, and for the load of a failed neighbour.
UTILIZATION = 0.6
SMALL_MACHINE_CORES = 2
# Database CPU including vacuum, checkpoints and statistics, over that of a measurement of a few seconds.
MAINTENANCE_FACTOR = 1.3
FULL_PAGE_FACTOR = 1.5  # WAL including full pages after a checkpoint, over that of the statements alone
# Bytes of WAL of each statement besides its rows: a commit, a row of statistics (make bench-policies).
STATEMENT_WAL = 200
PRIMARY_CORES = 32  # of the largest machine to use for one Postgres
# Bytes per second that its disk (a local NVMe, or a fast network disk) and its standby can sustain.
PRIMARY_WAL = 400e6
FINISHED_JOB_BYTES = 480  # bytes of a finished job on disk, with its index entry (make bench-cost)


class Shape(NamedTuple):
    """A way to use the broker.

    `paths`: the measurements that make up a life. `network`: bytes per life, counted by hand from
    bodies and heads with a payload of 200 bytes: clients and broker, then broker and database.
    """

    name: str
    paths: tuple[str, str]
    statements: float
    network: int


SHAPES = (
    Shape("one by one", ("enqueue_1", "claim_1_complete_1"), 3, 2_500 + 750),
    Shape("in batches", ("enqueue_1000", "claim_100_carrying"), 1 / 1000 + 2 / 100, 1_100 + 750),
)


SHOWN_PATHS = (
    "enqueue_1",
    "claim_1_complete_1",
    "claim_1_carrying",
    "enqueue_100",
    "enqueue_1000",
    "claim_100_settle_100",
    "claim_100_carrying",
)


class Cost(NamedTuple):
    """Cost of one life: CPU in microseconds, WAL in bytes. `lane`: lives per second that one lane reached."""

    server: float
    database: float
    wal: float
    lane: float


class Need(NamedTuple):
    """Cores, bytes and commits per second at full use; processes and primaries such that each is
    used by `UTILIZATION`.
    """

    rate: int
    broker: float
    database: float
    wal: float
    network: float
    commits: float
    kept: float
    processes: int
    lanes: int
    primaries: int
    bound: str

    @property
    def connections(self) -> int:
        return self.processes * Settings.model_construct().pool_size

    @property
    def cores(self) -> int:
        """Cores of the one Postgres."""
        return ceil(self.database / UTILIZATION)


def newest_report(folder: Path) -> Report:
    """Returns the newest_report run that has measured every path that the calculation needs."""
    for file in sorted(folder.glob("*.json"), reverse=True):
        report = msgspec.json.decode(file.read_bytes(), type=Report)
        if all(_rows(report, path) for shape in SHAPES for path in shape.paths):
            return report
    raise SystemExit(
        f"{folder.name} has no run with {', '.join(path for shape in SHAPES for path in shape.paths)}: make bench"
    )


def _rows(report: Report, path: str) -> list[Row]:
    """Rows of Longshore without API keys; one process first."""
    return sorted(
        (row for row in report.rows if row.contender in ("ours-1", "ours-2") and row.path == path),
        key=lambda row: row.contender,
    )


def per_life(text: str, row_name: str) -> float:
    """Reads the table of `make bench-cost` in bench/README.md: the last column, where the tables are fullest."""
    line = re.search(rf"^\| \*\*{row_name}\*\* \|(.*)\|$", text, re.MULTILINE)
    assert line, f"bench/README.md has no row {row_name}"
    return float(line[1].split("|")[-1].strip(" *").replace(",", ""))


def cost(report: Report, shape: Shape, wal: float) -> Cost:
    measured = [_rows(report, path) for path in shape.paths]
    return Cost(
        server=sum(rows[0].server for rows in measured),
        database=sum(rows[0].database for rows in measured) * MAINTENANCE_FACTOR,
        wal=(wal + shape.statements * STATEMENT_WAL) * FULL_PAGE_FACTOR,
        lane=min(max(row.rate for row in rows) for rows in measured),
    )


def need(rate: int, shape: Shape, cost: Cost) -> Need:
    database, wal = rate * cost.database / 1e6, rate * cost.wal
    primaries = {"cores": database / PRIMARY_CORES / UTILIZATION, "WAL": wal / PRIMARY_WAL / UTILIZATION}
    bound = max(primaries, key=lambda limit: primaries[limit])
    return Need(
        rate=rate,
        broker=rate * cost.server / 1e6,
        database=database,
        wal=wal,
        network=rate * float(shape.network),
        commits=rate * shape.statements,
        kept=rate * 86_400.0 * FINISHED_JOB_BYTES,
        processes=ceil(rate * cost.server / 1e6 / UTILIZATION),
        lanes=ceil(rate / cost.lane / UTILIZATION),
        primaries=ceil(primaries[bound]),
        bound=bound,
    )


def lives_per_second(cost: Cost, cores: int = SMALL_MACHINE_CORES) -> float:
    """Lives per second of broker and database on one machine, with as many processes as that needs."""
    return cores * UTILIZATION * 1e6 / (cost.server + cost.database)


def describe_deployment(need: Need) -> str:
    """Describes where that load runs."""
    if need.broker + need.database <= SMALL_MACHINE_CORES * UTILIZATION:
        return f"one machine of {SMALL_MACHINE_CORES} cores"
    if need.primaries == 1:
        return f"one Postgres of {max(SMALL_MACHINE_CORES, need.cores)} cores, brokers apart"
    return f"Citus, {need.primaries} primaries, bound by {need.bound}"


def render(report: Report, wal: float, buffers: float) -> str:
    costs = [(shape, cost(report, shape, wal)) for shape in SHAPES]
    parts = [
        _render_head(report),
        _render_measured(report, wal, buffers),
        _render_small_machine(costs),
        *(_render_needs(shape, [need(rate, shape, life_cost) for rate in RATES]) for shape, life_cost in costs),
        _render_assumptions(report),
    ]
    return "\n\n".join(parts)


def _render_head(report: Report) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return f"Calculated from the run of {report.date} ({machine}; {report.rounds} rounds of {report.seconds:g} s)."


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _render_measured(report: Report, wal: float, buffers: float) -> str:
    rows = [rows[0] for path in SHOWN_PATHS if (rows := _rows(report, path))]
    lines = [(row.path, f"{row.server:,.0f}", f"{row.database:,.0f}", f"{row.rate:,.0f}") for row in rows]
    title = "**Measured**, one broker process, one queue with one lane, payload of 200 bytes:"
    note = (
        f"A life in batches of 100 writes {wal:,.0f} bytes of WAL; "
        f"a claim touches {buffers:g} buffers per job (`make bench-cost`)."
    )
    return f"{title}\n\n{table(['path', 'µs of broker CPU per job', 'µs of database CPU', 'jobs/s'], lines)}\n\n{note}"


def _render_small_machine(costs: Iterable[tuple[Shape, Cost]]) -> str:
    head = [
        "use",
        f"lives/s on {SMALL_MACHINE_CORES} cores, broker and Postgres together",
        "lives/s per broker process",
        "lives/s per database core",
    ]
    lines = [
        (
            shape.name,
            *map(
                _rounded, (lives_per_second(cost), UTILIZATION * 1e6 / cost.server, UTILIZATION * 1e6 / cost.database)
            ),
        )
        for shape, cost in costs
    ]
    title = f"**Calculated: what a small machine, a process and a core carry**, {UTILIZATION:.0%} busy:"
    return f"{title}\n\n{table(head, lines)}"


def _rounded(value: float) -> str:
    """Rounds to two digits: more would claim too much precision."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def _render_needs(shape: Shape, needs: Iterable[Need]) -> str:
    head = [
        "jobs/s",
        "broker cores",
        "processes",
        "connections",
        "database cores",
        "WAL MB/s",
        "network MB/s",
        "commits/s, at most",
    ]
    head += ["history GB/day", "lanes, if one queue", "runs on"]
    return f"**Calculated: {shape.name}** ({' + '.join(shape.paths)}):\n\n{table(head, map(_need_line, needs))}"


def _need_line(need: Need) -> list[str]:
    sizes = map(_rounded, (need.wal / 1e6, need.network / 1e6, need.commits, need.kept / 1e9))
    lanes = (
        f"{need.lanes}"
        if need.lanes <= LANES_PER_QUEUE
        else f"{need.lanes}: {ceil(need.lanes / LANES_PER_QUEUE)} queues"
    )
    brokers = [_rounded(need.broker), f"{need.processes:,}", f"{need.connections:,}"]
    return [f"{need.rate:,}", *brokers, _rounded(need.database), *sizes, lanes, describe_deployment(need)]


def _render_assumptions(report: Report) -> str:
    networks = " and ".join(f"{shape.network:,} bytes per life {shape.name}" for shape in SHAPES)
    lines = [
        f"`UTILIZATION`: processes, lanes and primaries are {UTILIZATION:.0%} busy. "
        "Cores, MB and commits are those in use, without reserve.",
        f"`MAINTENANCE_FACTOR`: vacuum and checkpoints make database CPU {MAINTENANCE_FACTOR} times "
        "what a few seconds show.",
        f"`FULL_PAGE_FACTOR`: full pages after checkpoints make WAL {FULL_PAGE_FACTOR} times "
        "what the statements write.",
        f"`STATEMENT_WAL`: a statement writes {STATEMENT_WAL} bytes besides its rows; "
        "one by one, each call is assumed to have its own.",
        f"`PRIMARY_CORES`, `PRIMARY_WAL`: the largest Postgres has {PRIMARY_CORES} cores, "
        f"and sustains {PRIMARY_WAL / 1e6:.0f} MB/s of WAL.",
        f"`FINISHED_JOB_BYTES`: a finished job takes {FINISHED_JOB_BYTES} bytes on disk.",
        f"`network`: {networks}, counted by hand; WAL to standbys is not included.",
        "A core of a larger machine is worth one of this machine. "
        "The cost per job does not grow with cores, processes or primaries.",
        "Load is spread evenly over processes, lanes and primaries.",
        *_without_sharing(report),
    ]
    return "**Assumed**, all of it in `bench/growth.py`:\n\n" + "\n".join(f"- {line}" for line in lines)


def _without_sharing(report: Report) -> Iterable[str]:
    """The cost when there are too few callers to share statements."""
    yield (
        "One by one, CPU is that of 64 callers on one process and lane, which share statements. "
        "With fewer callers it is more."
    )
    alone = next((row for row in report.rows if (row.contender, row.path) == ("database", "insert_1")), None)
    if alone:
        shared = _rows(report, "enqueue_1")[0].database
        yield (
            f"At worst: an INSERT of one row costs the database {alone.database:,.0f} µs (pgbench), "
            f"an enqueue that shares {shared:,.0f}."
        )


def replace_part(page: str, part: str) -> str:
    before, begin, after_begin = page.partition(BEGIN)
    _, end, after = after_begin.partition(END)
    assert begin, f"the page has no {BEGIN}"
    assert end, f"the page has no {END}"
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-growth", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs (bench/results)")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page of which a part is rewritten (docs/operations/capacity.md)"
    )
    options = parser.parse_args()
    costs = (HERE / "README.md").read_text()
    part = render(newest_report(options.results), per_life(costs, "WAL bytes, life"), per_life(costs, "buffers, claim"))
    print(part)
    options.page.write_text(replace_part(options.page.read_text(), part))


if __name__ == "__main__":
    main()
