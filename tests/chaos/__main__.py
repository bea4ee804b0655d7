"""`python -m tests.chaos`: a run as the command line says, its table, and 1 if anything was found."""

import sys

from tests.chaos.harness import run
from tests.chaos.options import parse


def main() -> int:
    summary = run(parse())
    print(f"\n{summary.table()}")
    return 0 if summary.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
