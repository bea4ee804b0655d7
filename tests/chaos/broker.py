"""A broker of the run: the normal `serve` command, after an optional bug and fault injection.

The code of the broker knows nothing of it. CHAOS_MUTANT names the bug (tests/chaos/mutants.py);
CHAOS_BUGGIFY is `rate:seed` of the faults in its database connections.
"""

import asyncio
import gc
import os
import signal
import sys
from types import FrameType

from app.cli.commands import main as run_broker
from tests.chaos import buggify


def prepare() -> None:
    mutant, faults = os.environ.get("CHAOS_MUTANT"), os.environ.get("CHAOS_BUGGIFY")
    if faults:
        rate, seed = faults.split(":", 1)
        buggify.install(float(rate), seed)
    if mutant:
        from tests.chaos import mutants

        mutants.apply(mutant)


def print_tasks(_signal: int, _frame: FrameType | None) -> None:
    """Prints the pending tasks of a broker that does not exit, on SIGUSR1."""
    for task in (item for item in gc.get_objects() if isinstance(item, asyncio.Task)):
        if not task.done():
            print(task, file=sys.stderr, flush=True)
            task.print_stack(file=sys.stderr)


def main(_args: list[str]) -> None:
    prepare()
    signal.signal(signal.SIGUSR1, print_tasks)
    sys.argv = ["longshore", "serve"]
    run_broker()


if __name__ == "__main__":
    main([])
