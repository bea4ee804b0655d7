"""A broker of the run: the product's own `serve`, in a process that may first get a deliberate bug, and tricks at its database.

The product knows nothing of it. CHAOS_MUTANT names the bug (tests/chaos/mutants.py), CHAOS_BUGGIFY is `rate:seed`.
"""

import asyncio
import gc
import os
import signal
import sys
from types import FrameType

from app.cli.commands import main as product
from tests.chaos import buggify


def prepare() -> None:
    name, tricks = os.environ.get("CHAOS_MUTANT"), os.environ.get("CHAOS_BUGGIFY")
    if tricks:
        rate, seed = tricks.split(":", 1)
        buggify.install(float(rate), seed)
    if name:
        from tests.chaos import mutants

        mutants.apply(name)


def print_tasks(_signal: int, _frame: FrameType | None) -> None:
    """What a broker waits for that does not end: asked for by SIGUSR1, told in its log."""
    for task in (thing for thing in gc.get_objects() if isinstance(thing, asyncio.Task)):
        if not task.done():
            print(task, file=sys.stderr, flush=True)
            task.print_stack(file=sys.stderr)


def main(_args: list[str]) -> None:
    prepare()
    signal.signal(signal.SIGUSR1, print_tasks)
    sys.argv = ["longshore", "serve"]
    product()


if __name__ == "__main__":
    main([])
