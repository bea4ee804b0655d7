"""`make bench`: measures Longshore, the database alone and peers in turn, in several rounds.

Then it runs the probes: wake-ups, parked polls and reads. The report ends with the goals.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import machine, postgres, probes
from bench.contest import Contest, build_report, selected_paths
from bench.database import Database
from bench.install import HOME
from bench.load.order import Figures
from bench.machine import OtherProcesses
from bench.ours import WORKLOADS, Longshore
from bench.report import RESULTS, Report, write
from bench.result import Peer

SERVER_PATHS = tuple(path for path in WORKLOADS if not path.startswith("like_"))
QUICK = probes.Size(samples=300, waiting=200, polls=500, jobs=50_000, seconds=2.0, lone=200)


def contenders(warm_up: float) -> list[Peer]:
    return [
        Longshore("ours-1", warm_up=warm_up),
        Longshore("ours-2", processes=2, paths=SERVER_PATHS, warm_up=warm_up),
        Longshore("ours-1-keys", keys=True, paths=("enqueue_1", "claim_100_settle_100"), warm_up=warm_up),
        Database(),
    ]


def peers(options: argparse.Namespace) -> list[Peer]:
    if options.no_peers:
        return []
    from bench.peers import CONTENDERS

    return CONTENDERS


def show(line: str) -> None:
    """Shows progress: a line that ends with a newline stays, any other is overwritten.

    Without a terminal only the lines that stay are printed.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif line.endswith("\n"):
        print(line, end="", file=sys.stderr, flush=True)


async def measure(dsn: str, options: argparse.Namespace) -> Report:
    others = OtherProcesses()
    contest = Contest(dsn, ours=contenders(options.warm_up), peers=peers(options), only=options.only, show=show)
    await contest.run(options.rounds, options.seconds)
    return build_report(
        contest,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        machine=machine.describe() | {"used by other processes during the run": f"{others.cpu_share():.0%}"},
        settings={"version": await postgres.version(dsn), **postgres.OPTIONS},
        rounds=options.rounds,
        seconds=options.seconds,
        probes=await run_probes(dsn, options),
    )


async def run_probes(dsn: str, options: argparse.Namespace) -> dict[str, Figures]:
    figures = {}
    for name in probes.PROBES:
        if not options.only or name in options.only:
            show(f"probe · {name} …")
            figures[name] = await probes.run(dsn, name, options.size, show)
            show(f"probe · {name}: {', '.join(f'{key} {value:,.2f}' for key, value in figures[name].items())}\n")
    return figures


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, help="how often each contender runs (3)")
    parser.add_argument("--seconds", type=float, help="approximate duration of each measurement (2.5)")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="contenders, paths or probes, separated by commas"
    )
    parser.add_argument("--no-peers", action="store_true", help="only Longshore and the database alone")
    parser.add_argument(
        "--quick", action="store_true", help="one short round without peers, small probes; results go to .bench/quick"
    )
    parser.add_argument("--jobs", type=int, default=probes.Size().jobs, help="number of jobs for the reads")
    parser.add_argument("--results", type=Path, help="folder of the table, the JSON and the plot (bench/results)")
    parser.add_argument("--list", action="store_true", help="list contenders, paths and probes, and exit")
    return _with_defaults(parser.parse_args(arguments))


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    quick = options.quick
    options.no_peers |= quick
    options.rounds = options.rounds or (1 if quick else 3)
    options.seconds = options.seconds or (1.0 if quick else 2.5)
    options.warm_up = min(1.0, options.seconds)
    options.results = options.results or (HOME / "quick" if quick else RESULTS)
    options.size = QUICK if quick else probes.Size(jobs=options.jobs)
    return options


def print_choices(options: argparse.Namespace) -> None:
    for peer in (*contenders(0), *peers(options)):
        print(f"{peer.name} ({peer.protocol}): {', '.join(selected_paths(peer, options.only))}")
    print(f"probes: {', '.join(probes.PROBES)}")


def main() -> None:
    options = parse_options()
    if options.list:
        print_choices(options)
        return
    with postgres.temporary_postgres() as dsn:
        report = asyncio.run(measure(dsn, options))
    show("")
    write(report, options.results)


if __name__ == "__main__":
    main()
