"""Calls /livez repeatedly and prints when each call began and ended.

Usage: `python -m tests.http.livez_prober host port`.
"""

import sys
import time
from http.client import HTTPConnection

PAUSE_SECONDS = 0.002


def main() -> None:
    connection = HTTPConnection(sys.argv[1], int(sys.argv[2]))
    while True:
        began = time.monotonic()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        print(began, time.monotonic(), flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
