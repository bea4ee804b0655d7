"""Calls /livez repeatedly. Prints when each call began and ended, and how long it took.

Usage: `python -m tests.http.livez_prober host port pid-of-the-broker`.

The time that the broker or this process waited for a CPU is not counted: another process on this
machine may use it. Linux reports that time; elsewhere it is counted.
"""

import sys
import time
from http.client import HTTPConnection
from pathlib import Path

PAUSE_SECONDS = 0.002


def cpu_wait(process: str) -> float:
    """The seconds that the main thread of the process has been ready to run without a CPU."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


def main() -> None:
    host, port, broker = sys.argv[1:]
    connection = HTTPConnection(host, int(port))
    while True:
        began, waited = time.monotonic(), cpu_wait(broker) + cpu_wait("self")
        connection.request("GET", "/livez")
        connection.getresponse().read()
        ended = time.monotonic()
        waited = cpu_wait(broker) + cpu_wait("self") - waited
        print(began, ended, max(0.0, ended - began - waited), flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
