"""`python -m tests.chaos`: runs the harness, prints a table, and exits with 1 on any violation."""

import sys

from tests.chaos.harness import run
from tests.chaos.options import parse


def main() -> int:
    summary = run(parse())
    print(f"\n{summary.table()}")
    return 0 if summary.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
