"""`make bench-growth`: from what a job was measured to cost here to what 100 to 1,000,000 jobs per second need. A calculation, not a
measurement; what is assumed has a name here, and is told with the result."""

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
PAGE = HERE.parent / "docs" / "growth.md"
BEGIN, END = "<!-- begin: make bench-growth -->", "<!-- end: make bench-growth -->"

RATES = (100, 1_000, 10_000, 100_000, 1_000_000)
BUSY = 0.6  # how much of a core, a disk or a lane is planned with: the rest is for peaks, and for a neighbour that has died
SMALL = 2  # cores of a small machine
UPKEEP = (
    1.3  # database CPU with vacuum, checkpoints and statistics, over that of the few seconds that a measurement takes
)
FULL_PAGES = 1.5  # WAL with the pages that are written whole after a checkpoint, over that of the statements alone
STATEMENT_WAL = (
    200  # bytes of WAL of each statement beside its rows: a commit, a row of statistics (make bench-policies)
)
PRIMARY_CORES = 32  # of the largest machine that we would give to one Postgres
PRIMARY_WAL = (
    400e6  # bytes per second that its disk (a local NVMe, or a fast network disk) and its standby take in without end
)
KEPT = 480  # bytes of a finished job on disk, with its index entry (make bench-cost)


class Shape(NamedTuple):
    """A way to use the broker. `paths`: the measurements that make up a life. `network`: bytes per life, counted by hand from bodies and
    heads with a payload of 200 bytes: clients and broker, then broker and database."""

    name: str
    paths: tuple[str, str]
    statements: float
    network: int


SHAPES = (
    Shape("one by one", ("enqueue_1", "claim_1_complete_1"), 3, 2_500 + 750),
    Shape("in batches", ("enqueue_1000", "claim_100_carrying"), 1 / 1000 + 2 / 100, 1_100 + 750),
)


TOLD = ("enqueue_1", "claim_1_complete_1", "enqueue_100", "enqueue_1000", "claim_100_settle_100", "claim_100_carrying")


class Cost(NamedTuple):
    """Of one life: CPU in microseconds, WAL in bytes. `lane`: lives per second that one lane was seen to give."""

    server: float
    database: float
    wal: float
    lane: float


class Need(NamedTuple):
    """Cores, bytes and commits per second at full use; numbers of processes and primaries so that each is `BUSY`."""

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
        """Of the one Postgres."""
        return ceil(self.database / BUSY)


def newest(folder: Path) -> Report:
    """The newest run that has measured all that we need."""
    for file in sorted(folder.glob("*.json"), reverse=True):
        report = msgspec.json.decode(file.read_bytes(), type=Report)
        if all(_rows(report, path) for shape in SHAPES for path in shape.paths):
            return report
    raise SystemExit(
        f"{folder.name} has no run with {', '.join(path for shape in SHAPES for path in shape.paths)}: make bench"
    )


def _rows(report: Report, path: str) -> list[Row]:
    """Of ours, without keys; one process first."""
    return sorted(
        (row for row in report.rows if row.contender in ("ours-1", "ours-2") and row.path == path),
        key=lambda row: row.contender,
    )


def per_life(text: str, what: str) -> float:
    """Of the table that `make bench-cost` has in bench/README.md: the last column, where the tables are fullest."""
    line = re.search(rf"^\| \*\*{what}\*\* \|(.*)\|$", text, re.MULTILINE)
    assert line, f"bench/README.md does not tell {what}"
    return float(line[1].split("|")[-1].strip(" *").replace(",", ""))


def cost(report: Report, shape: Shape, wal: float) -> Cost:
    measured = [_rows(report, path) for path in shape.paths]
    return Cost(
        server=sum(rows[0].server for rows in measured),
        database=sum(rows[0].database for rows in measured) * UPKEEP,
        wal=(wal + shape.statements * STATEMENT_WAL) * FULL_PAGES,
        lane=min(max(row.rate for row in rows) for rows in measured),
    )


def need(rate: int, shape: Shape, cost: Cost) -> Need:
    database, wal = rate * cost.database / 1e6, rate * cost.wal
    primaries = {"cores": database / PRIMARY_CORES / BUSY, "WAL": wal / PRIMARY_WAL / BUSY}
    bound = max(primaries, key=lambda limit: primaries[limit])
    return Need(
        rate=rate,
        broker=rate * cost.server / 1e6,
        database=database,
        wal=wal,
        network=rate * float(shape.network),
        commits=rate * shape.statements,
        kept=rate * 86_400.0 * KEPT,
        processes=ceil(rate * cost.server / 1e6 / BUSY),
        lanes=ceil(rate / cost.lane / BUSY),
        primaries=ceil(primaries[bound]),
        bound=bound,
    )


def carried(cost: Cost, cores: int = SMALL) -> float:
    """Lives per second by broker and database on one machine; as many processes as that needs."""
    return cores * BUSY * 1e6 / (cost.server + cost.database)


def place(told: Need) -> str:
    """Where that runs."""
    if told.broker + told.database <= SMALL * BUSY:
        return f"one machine of {SMALL} cores"
    if told.primaries == 1:
        return f"one Postgres of {max(SMALL, told.cores)} cores, brokers apart"
    return f"Citus, {told.primaries} primaries, bound by {told.bound}"


def written(report: Report, wal: float, buffers: float) -> str:
    costs = [(shape, cost(report, shape, wal)) for shape in SHAPES]
    parts = [
        _head(report),
        _measured(report, wal, buffers),
        _small(costs),
        *(_needs(shape, [need(rate, shape, told) for rate in RATES]) for shape, told in costs),
        _assumed(report),
    ]
    return "\n\n".join(parts)


def _head(report: Report) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return f"Calculated from the run of {report.date} ({machine}; {report.rounds} rounds of {report.seconds:g} s)."


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _measured(report: Report, wal: float, buffers: float) -> str:
    rows = [rows[0] for path in TOLD if (rows := _rows(report, path))]
    lines = [(row.path, f"{row.server:,.0f}", f"{row.database:,.0f}", f"{row.rate:,.0f}") for row in rows]
    title = "**Measured**, one broker process, one queue with one lane, payload of 200 bytes:"
    told = f"A life in batches of 100 writes {wal:,.0f} bytes of WAL; a claim touches {buffers:g} buffers per job (`make bench-cost`)."
    return f"{title}\n\n{table(['path', 'µs of broker CPU per job', 'µs of database CPU', 'jobs/s'], lines)}\n\n{told}"


def _small(costs: Iterable[tuple[Shape, Cost]]) -> str:
    head = [
        "use",
        f"lives/s on {SMALL} cores, broker and Postgres together",
        "lives/s per broker process",
        "lives/s per database core",
    ]
    lines = [
        (shape.name, *map(_rounded, (carried(told), BUSY * 1e6 / told.server, BUSY * 1e6 / told.database)))
        for shape, told in costs
    ]
    return f"**Calculated: what a small machine, a process and a core carry**, {BUSY:.0%} busy:\n\n{table(head, lines)}"


def _rounded(value: float) -> str:
    """Two digits: more would pretend."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def _needs(shape: Shape, needs: Iterable[Need]) -> str:
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


def _need_line(told: Need) -> list[str]:
    sizes = map(_rounded, (told.wal / 1e6, told.network / 1e6, told.commits, told.kept / 1e9))
    lanes = (
        f"{told.lanes}"
        if told.lanes <= LANES_PER_QUEUE
        else f"{told.lanes}: {ceil(told.lanes / LANES_PER_QUEUE)} queues"
    )
    brokers = [_rounded(told.broker), f"{told.processes:,}", f"{told.connections:,}"]
    return [f"{told.rate:,}", *brokers, _rounded(told.database), *sizes, lanes, place(told)]


def _assumed(report: Report) -> str:
    networks = " and ".join(f"{shape.network:,} bytes per life {shape.name}" for shape in SHAPES)
    lines = [
        f"`BUSY`: processes, lanes and primaries are {BUSY:.0%} busy. Cores, MB and commits are what is used, without reserve.",
        f"`UPKEEP`: vacuum and checkpoints make database CPU {UPKEEP} times what a few seconds show.",
        f"`FULL_PAGES`: whole pages after checkpoints make WAL {FULL_PAGES} times what the statements write.",
        f"`STATEMENT_WAL`: a statement writes {STATEMENT_WAL} bytes beside its rows; one by one, each call is taken to have its own.",
        f"`PRIMARY_CORES`, `PRIMARY_WAL`: the largest Postgres has {PRIMARY_CORES} cores, and takes {PRIMARY_WAL / 1e6:.0f} MB/s of WAL.",
        f"`KEPT`: a finished job takes {KEPT} bytes on disk.",
        f"`network`: {networks}, counted by hand; WAL to standbys comes on top.",
        "A core of a larger machine is worth one of this one. Cost per job does not grow with cores, processes or primaries.",
        "Load is spread evenly over processes, lanes and primaries.",
        *_unshared(report),
    ]
    return "**Assumed**, all of it in `bench/growth.py`:\n\n" + "\n".join(f"- {line}" for line in lines)


def _unshared(report: Report) -> Iterable[str]:
    """What is lost where callers are too few to share statements."""
    yield "One by one, CPU is that of 64 callers on one process and lane, who share statements. With fewer on each it is more."
    alone = next((row for row in report.rows if (row.contender, row.path) == ("database", "insert_1")), None)
    if alone:
        shared = _rows(report, "enqueue_1")[0].database
        yield f"At worst: an INSERT of one row costs the database {alone.database:,.0f} µs (pgbench), an enqueue that shares {shared:,.0f}."


def replaced(page: str, part: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"the page lacks {BEGIN}"
    assert end, f"the page lacks {END}"
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-growth", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs (bench/results)")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="the page of which a part is rewritten (docs/growth.md)"
    )
    options = parser.parse_args()
    told = (HERE / "README.md").read_text()
    part = written(newest(options.results), per_life(told, "WAL bytes, life"), per_life(told, "buffers, claim"))
    print(part)
    options.page.write_text(replaced(options.page.read_text(), part))


if __name__ == "__main__":
    main()
