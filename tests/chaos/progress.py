"""One line that says where the run is: rewritten on a terminal, now and then a new one elsewhere."""

import sys
import time

from tests.chaos.options import Options

LINE_SECONDS = 10.0  # seconds between lines where there is no terminal


class Progress:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._began = time.monotonic()
        self._said = 0.0

    def show(self, what: str) -> None:
        seconds = time.monotonic() - self._began
        line = f"chaos seed {self._options.seed}: {seconds:5.0f} s  {what}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif seconds - self._said >= LINE_SECONDS:
            self._said = seconds
            print(line, file=sys.stderr, flush=True)
