"""Limits how many worker ids, and how many polled queues and job types, are listed per API key.

Without the limit, a key with the scope `work` could fill the tables and the memory. A worker that
makes up a new id for every claim is a common mistake. Its requests are served like any others; only
the list of workers, with their directives, and the poll history do not grow beyond the limit. An
entry that has not been seen for a day no longer counts; the cleaner deletes it from its table, too.
"""

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

FORGET_SECONDS = 24 * 60 * 60
# A table has at most this many times the limit of one key as rows. Every broker counts on its own,
# and from zero after a restart; this bound holds for all of them together.
LIMITS_PER_TABLE = 10


class ListedIds(Generic[T]):
    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._by_key: dict[str, dict[T, float]] = {}  # id -> last seen, the oldest first

    @property
    def max_rows(self) -> int:
        return self._limit * LIMITS_PER_TABLE

    def try_add(self, listed_id: T, key_name: str) -> bool:
        """Lists the id, unless the limit of the key is reached. Returns whether it is listed.

        Keys with the same name share the limit.
        """
        ids, now = self._by_key.setdefault(key_name, {}), self._clock()
        is_listed = ids.pop(listed_id, None) is not None
        while ids and now - next(iter(ids.values())) > FORGET_SECONDS:
            del ids[next(iter(ids))]
        if not is_listed and len(ids) >= self._limit:
            return False
        ids[listed_id] = now
        return True
