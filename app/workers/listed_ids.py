"""Bounds the worker ids that are listed per API key.

Without the bound, a key with the scope `work` could fill the table and the memory. A worker that
makes up a new id for every claim is a common mistake. Its requests are served like any others; only
the list of workers, with their directives, does not grow beyond the limit. An id that has not been
seen for a day is dropped here, as it is from the table.
"""

import time
from collections.abc import Callable

FORGET_SECONDS = 24 * 60 * 60


class ListedIds:
    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._by_key: dict[str, dict[str, float]] = {}  # id -> last seen, the oldest first

    def try_add(self, worker_id: str, key_name: str) -> bool:
        """Returns whether the id is listed. Keys with the same name share the limit."""
        ids, now = self._by_key.setdefault(key_name, {}), self._clock()
        is_listed = ids.pop(worker_id, None) is not None
        while ids and now - next(iter(ids.values())) > FORGET_SECONDS:
            del ids[next(iter(ids))]
        if not is_listed and len(ids) >= self._limit:
            return False
        ids[worker_id] = now
        return True
