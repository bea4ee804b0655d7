"""The options of a run: seed, size, faults.

Every process of the run gets the same options, as JSON."""

import argparse
from dataclasses import dataclass, fields

import msgspec


@dataclass(frozen=True)
class Options:
    """All options. Each field is also an option of the command line; HELP has the texts."""

    seed: int = 7
    jobs: int = 20_000
    faults: int = 24
    brokers: int = 3
    producers: int = 2
    workers: int = 3
    slots: int = 4  # concurrent claims of one worker process
    lease: int = 4
    quiet: float = 4.0
    fault_seconds: float = 1.6  # on average: each fault lasts between half and one and a half of it
    gap_seconds: float = 1.2
    nemeses: tuple[str, ...] = ()  # empty: all of the short form
    full: bool = False  # also the nemeses that are not in the short form
    together: float = 0.15  # share of the later faults that are two nemeses at once
    buggify: float = 0.002  # share of statements with an injected fault in the broker's database connection
    mutant: str = ""
    keep: str = ""  # folder for the histories; empty: a temporary one, kept on a violation
    crash: float = 0.002  # share of claims after which a worker kills itself
    pause: float = 0.004  # share of claims after which a worker sleeps past its lease
    wait_after_settle: float = 0.5  # share of claims that wait for jobs even if they carry settlements
    schedules: bool = True
    operator: float = 0.3  # seconds between the actions of the operator; 0: no operator
    halt: float = 1.0  # seconds for which the operator pauses a queue, on average
    focus: str = ""  # a queue that gets most jobs
    cancels: float = 0.01  # share of acknowledged jobs that are cancelled
    failures: float = 1.0  # factor for the share of jobs that fail
    keyless: float = 0.08  # share of enqueue calls without an Idempotency-Key
    sql: float = 0.04  # share of enqueue calls that are SQL in the producer's own transaction
    settling: float = 30.0  # seconds to drain, beyond the time that leases and attempts may take (I9)

    @property
    def load_seconds(self) -> float:
        """Returns the seconds over which producers spread their jobs: the quiet time and the
        faults."""
        return self.quiet + self.faults * (self.fault_seconds + self.gap_seconds + 0.8)


HELP = {
    "seed": "seed of all random numbers",
    "jobs": "number of jobs to enqueue",
    "faults": "number of faults to inject: each nemesis once, then at random",
    "nemeses": "names of the nemeses to use, separated by commas",
    "full": "use the nemeses of the full form",
    "mutant": "a deliberate bug from tests/chaos/mutants.py",
    "keep": "folder for the histories",
}


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for field in fields(Options):
        name, text = f"--{field.name.replace('_', '-')}", HELP.get(field.name, field.name.replace("_", " "))
        if isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default, help=text)
        elif isinstance(field.default, tuple):
            parser.add_argument(name, type=lambda text: tuple(text.split(",")), default=field.default, help=text)
        else:
            parser.add_argument(name, type=type(field.default), default=field.default, help=text)
    return Options(**vars(parser.parse_args(arguments)))


def to_json(options: Options) -> str:
    return msgspec.json.encode(options).decode()


def from_json(text: str) -> Options:
    return msgspec.json.decode(text, type=Options)
