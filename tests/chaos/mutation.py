"""`python -m tests.chaos.mutation`: runs every mutant in its situation, with several seeds.

The unmodified broker must have no violation in the same situations."""

import argparse
import shutil
import sys
import time
from dataclasses import dataclass, replace

from tests.chaos.harness import run
from tests.chaos.mutants import MUTANTS
from tests.chaos.options import Options
from tests.chaos.workload import FIFO, GROUPED, PAUSED, PURGED, WIDE

SEEDS = (1, 2, 3)
UNMODIFIED = ""
COLUMNS = "{:<22} {:<25} {:<11} {:<14} {:<9} {}"

_SMALL = Options(
    jobs=800,
    brokers=2,
    producers=1,
    workers=2,
    lease=2,
    quiet=1.0,
    faults=3,
    fault_seconds=0.6,
    gap_seconds=0.4,
    together=0.0,
    buggify=0.0,
    crash=0.0,
    pause=0.0,
    schedules=False,
    operator=0,
    settling=12.0,
)
SITUATIONS = {
    "late workers": replace(_SMALL, nemeses=("worker_stop",), jobs=600, lease=1, faults=2, pause=0.25),
    "dead workers": replace(_SMALL, nemeses=("worker_kill",), jobs=1500, faults=2, brokers=3, workers=3, crash=0.08),
    "lost replies": replace(_SMALL, nemeses=("client_lost_replies",)),
    "cut clients": replace(
        _SMALL, nemeses=("client_cut",), faults=8, fault_seconds=0.3, gap_seconds=0.6, workers=3, slots=8, pause=0.2
    ),
    "cut database": replace(_SMALL, nemeses=("db_lost_replies", "db_cut"), faults=4, buggify=0.02),
    "high concurrency": replace(_SMALL, nemeses=("old_snapshot",), jobs=2000, faults=1, slots=8, lease=1, pause=0.3),
    "single consumer": replace(
        _SMALL, nemeses=("old_snapshot",), jobs=400, quiet=6.0, faults=1, focus=FIFO, pause=0.05, lease=1
    ),
    "several lanes": replace(
        _SMALL, nemeses=("old_snapshot",), jobs=1500, quiet=8.0, faults=1, slots=2, focus=WIDE, pause=0.4, lease=1
    ),
    "several groups": replace(
        _SMALL, nemeses=("old_snapshot",), jobs=1200, quiet=8.0, faults=1, focus=GROUPED, pause=0.1, lease=1
    ),
    "purges": replace(_SMALL, nemeses=("old_snapshot",), quiet=6.0, faults=1, focus=PURGED, operator=0.1),
    "keyless batches": replace(
        _SMALL, nemeses=("db_lost_replies", "db_cut"), faults=4, buggify=0.02, focus=WIDE, keyless=0.8
    ),
    "replays": replace(
        _SMALL,
        nemeses=("db_cut", "broker_kill"),
        faults=10,
        fault_seconds=0.3,
        focus=WIDE,
        failures=10,
        operator=0.05,
        buggify=0.01,
    ),
    "killed database": replace(_SMALL, nemeses=("postgres_kill",), gap_seconds=1.2, sql=0),
    "paused queue": replace(
        _SMALL, nemeses=("worker_kill",), quiet=18.0, faults=1, lease=3, crash=0.15, focus=PAUSED, operator=0.2, halt=10
    ),
    "long outage": replace(_SMALL, nemeses=("long_outage_clock",), faults=1, focus=PAUSED),
    "cancels": replace(_SMALL, nemeses=("worker_stop",), jobs=400, lease=1, faults=1, cancels=0.2),
    "rolling": replace(_SMALL, nemeses=("broker_roll",), jobs=200, brokers=1, faults=1),
    "schedules": replace(_SMALL, nemeses=("broker_stop",), brokers=3, schedules=True),
}


@dataclass(frozen=True)
class Outcome:
    """The result of one run.

    `sentences`: the violations caused by the bug; all, if there is no bug."""

    name: str
    situation: str
    seed: int
    sentences: tuple[str, ...]
    seconds: float

    @property
    def is_as_expected(self) -> bool:
        return bool(self.sentences) == bool(self.name)


def run_mutant(name: str, situation: str, seed: int) -> Outcome:
    started = time.monotonic()
    report = run(replace(SITUATIONS[situation], mutant=name, seed=seed))
    reported = [
        f"{invariant}: {violation}"
        for invariant, violations in report.found.items()
        for violation in violations
        if _reports_bug(name, invariant, violation)
    ]
    outcome = Outcome(name, situation, seed, tuple(reported), time.monotonic() - started)
    if outcome.is_as_expected:
        shutil.rmtree(report.folder, ignore_errors=True)  # the history of an expected result is not needed
    return outcome


def _reports_bug(name: str, invariant: str, violation: str) -> bool:
    return not name or (invariant in MUTANTS[name].invariants and MUTANTS[name].expected_text in violation)


def mutant_runs(names: list[str]) -> list[tuple[str, str]]:
    """Returns the runs by situation, the unmodified broker first."""
    chosen = [(name, MUTANTS[name].situation) for name in MUTANTS if name in names or not names]
    return [
        mutant_run
        for situation in dict.fromkeys(s for _, s in chosen)
        for mutant_run in [(UNMODIFIED, situation), *(c for c in chosen if c[1] == situation)]
    ]


def line(outcomes: list[Outcome]) -> str:
    first = outcomes[0]
    invariants = "/".join(MUTANTS[first.name].invariants) if first.name else ""
    expected = sum(outcome.is_as_expected for outcome in outcomes)
    result = f"{'found' if first.name else 'clean'} {expected} of {len(outcomes)}"
    seconds = "/".join(f"{outcome.seconds:.0f}" for outcome in outcomes)
    sentence = next((outcome.sentences[0] for outcome in outcomes if outcome.sentences), "")
    columns = (
        first.name or "(no bug)",
        ", ".join(SITUATIONS[first.situation].nemeses),
        invariants,
        result,
        seconds,
        sentence[:90],
    )
    return COLUMNS.format(*columns)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutation")
    parser.add_argument("names", nargs="*", help="names of mutants; default: all")
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))), default=SEEDS)
    arguments = parser.parse_args()
    print(COLUMNS.format("mutant", "nemeses", "invariant", "seeds", "seconds", "for example"))
    unexpected = 0
    for name, situation in mutant_runs(arguments.names):
        outcomes = [run_mutant(name, situation, seed) for seed in arguments.seeds]
        print(line(outcomes), flush=True)
        unexpected += sum(not outcome.is_as_expected for outcome in outcomes)
    print(f"{len(arguments.names or MUTANTS)} mutants; {unexpected} runs with an unexpected result")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
