"""The results of a run: a table for people, JSON for later comparisons, and a plot."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench.install import MATPLOTLIB, python_environment
from bench.load.order import Figures
from bench.result import Peer, Result

RESULTS = Path(__file__).parent / "results"


class Row(msgspec.Struct, frozen=True):
    """One path of one contender over all rounds: jobs per second, and CPU microseconds per job."""

    contender: str
    path: str
    protocol: str
    postgres: bool
    rounds: int
    rate: float
    least: float
    most: float
    server: float
    database: float
    load: float
    settings: str
    versions: str


class Goal(msgspec.Struct, frozen=True):
    """One line of the table of goals. Without a ratio it was not measured, and `verdict` says so."""

    path: str
    goal: str
    ours: str
    reference: str
    ratio: float | None
    verdict: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    date: str
    machine: dict[str, str]
    settings: dict[str, str]
    rounds: int
    seconds: float
    rows: list[Row]
    probes: dict[str, Figures]
    missing: dict[str, str]
    goals: list[Goal] = []


def row(peer: Peer, path: str, results: Sequence[Result]) -> Row:
    def per_job(cpu: Callable[[Result], float]) -> float:
        return median(cpu(result) / result.jobs * 1e6 for result in results)

    rates = [result.rate for result in results]
    return Row(
        contender=peer.name,
        path=path,
        protocol=peer.protocol,
        postgres=peer.postgres,
        rounds=len(results),
        rate=median(rates),
        least=min(rates),
        most=max(rates),
        server=per_job(lambda result: result.cpu_server),
        database=per_job(lambda result: result.cpu_database),
        load=per_job(lambda result: result.cpu_load),
        settings=results[-1].settings,
        versions=results[-1].versions,
    )


def write(report: Report, folder: Path) -> None:
    """Writes three files named after the date, and prints the table, which ends with the goals."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / report.date.removesuffix(" UTC").replace(" ", "-").replace(":", "")
    file.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    file.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))
    _draw(file)
    print(f"Written: {file}.md, .json, .png", file=sys.stderr)


def _draw(file: Path) -> None:
    """Draws the plot with a Python that has matplotlib. Without one there is no plot, and the figures remain."""
    try:
        python = python_environment([MATPLOTLIB])
        subprocess.run(
            [python, Path(__file__).parent / "plot.py", file.with_suffix(".json"), file.with_suffix(".png")], check=True
        )
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"No plot was drawn: {error}", file=sys.stderr)


def markdown(report: Report) -> str:
    parts = [_head(report), _rates(report), _probes(report), _missing(report), _versions(report), _goals(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: Report) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    settings = ", ".join(f"{name} = {value}" for name, value in report.settings.items())
    return (
        f"# Benchmark of {report.date}\n\n"
        f"{report.rounds} rounds of about {report.seconds:g} s, all contenders in turn in each; payload 200 bytes.\n"
        f"Machine: {machine}.\nPostgres: {settings}."
    )


def _rates(report: Report) -> str:
    head = (
        "| path | contender | protocol | jobs/s, median | min..max "
        "| µs CPU per job: server | database | load | settings |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(_rate_line(row) for row in sorted(report.rows, key=lambda row: (row.path, -row.rate)))])


def _rate_line(row: Row) -> str:
    spread = f"{row.least:,.0f}..{row.most:,.0f}"
    cpu = f"{row.server:,.0f} | {row.database:,.0f} | {row.load:,.0f}"
    return f"| {row.path} | {row.contender} | {row.protocol} | {row.rate:,.0f} | {spread} | {cpu} | {row.settings} |"


def _probes(report: Report) -> str:
    lines = [
        f"| {name} | {figure} | {value:,.3f} |"
        for name, figures in report.probes.items()
        for figure, value in figures.items()
    ]
    return "\n".join(["| probe | figure | value |", "|---|---|---|", *lines]) if lines else ""


def _missing(report: Report) -> str:
    return "\n".join(f"- {name} is missing: {why}" for name, why in report.missing.items())


def _versions(report: Report) -> str:
    return "\n".join(
        f"- {name}: {versions}" for name, versions in {row.contender: row.versions for row in report.rows}.items()
    )


def _goals(report: Report) -> str:
    head = "| path | goal | ours | reference | ratio | |\n|---|---|---|---|---|---|"
    lines = [
        f"| {g.path} | {g.goal} | {g.ours} | {g.reference} | {_ratio(g.ratio)} | {g.verdict} |" for g in report.goals
    ]
    return "\n".join(["## Goals", "", head, *lines])


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
