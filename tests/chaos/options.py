"""What a run is made of: its seed, its size, its faults. The same options go to every process of the run, as JSON."""

import argparse
from dataclasses import dataclass, fields

import msgspec


@dataclass(frozen=True)
class Options:
    """Each field is an option of the command line too; its comment there is the text below."""

    seed: int = 7
    jobs: int = 20_000
    faults: int = 24
    brokers: int = 3
    producers: int = 2
    workers: int = 3
    slots: int = 4  # claims that one worker process has under way at once
    lease: int = 4
    quiet: float = 4.0
    fault_seconds: float = 1.6  # about: each is between half and one and a half of it
    gap_seconds: float = 1.2
    nemeses: tuple[str, ...] = ()  # none named: all of the short form
    full: bool = False  # also those that may stay out of the short form
    together: float = 0.15  # share of the later faults that come two at once
    buggify: float = 0.002  # share of statements with which the broker's way to the database plays tricks
    mutant: str = ""
    keep: str = ""  # folder for the histories; none: a temporary one, kept if something was found
    crash: float = 0.002  # share of claims at which a worker dies
    pause: float = 0.004  # share of claims after which a worker sleeps beyond its lease
    schedules: bool = True
    operator: float = 0.3  # seconds between the actions of an operator who pauses, purges and replays; 0: no operator
    halt: float = 1.0  # seconds for which the operator pauses a queue, about
    focus: str = ""  # a queue that most jobs go to
    cancels: float = 0.01  # share of acknowledged jobs that are cancelled
    failures: float = 1.0  # how many times as often as usual jobs fail
    keyless: float = 0.08  # share of enqueue calls without an Idempotency-Key
    sql: float = 0.04  # share of enqueue calls that are SQL in the producer's own transaction
    settling: float = 30.0  # seconds to come to an end, beyond what leases and attempts may take (I9)

    @property
    def load_seconds(self) -> float:
        """How long producers spread their jobs over: the quiet time and the faults, and no more."""
        return self.quiet + self.faults * (self.fault_seconds + self.gap_seconds + 0.8)


HELP = {
    "seed": "of all dice",
    "jobs": "to enqueue",
    "faults": "to inject: each nemesis once, then as the dice say",
    "nemeses": "only these, by name, with commas between",
    "full": "with the nemeses of the full form",
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
            parser.add_argument(name, type=lambda given: tuple(given.split(",")), default=field.default, help=text)
        else:
            parser.add_argument(name, type=type(field.default), default=field.default, help=text)
    return Options(**vars(parser.parse_args(arguments)))


def to_json(options: Options) -> str:
    return msgspec.json.encode(options).decode()


def from_json(text: str) -> Options:
    return msgspec.json.decode(text, type=Options)
