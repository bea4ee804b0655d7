"""A progress line: rewritten on a terminal, a new line at intervals elsewhere."""

import sys
import time

from tests.chaos.options import Options

LINE_SECONDS = 10.0  # seconds between lines where there is no terminal


class Progress:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._started = time.monotonic()
        self._shown_at = 0.0

    def show(self, phase: str) -> None:
        seconds = time.monotonic() - self._started
        line = f"chaos seed {self._options.seed}: {seconds:5.0f} s  {phase}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif seconds - self._shown_at >= LINE_SECONDS:
            self._shown_at = seconds
            print(line, file=sys.stderr, flush=True)
