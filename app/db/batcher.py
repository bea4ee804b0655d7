"""Natural batching: calls that arrive while a statement is running share the next one.

No call ever waits for a timer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextvars import Context
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar

import asyncpg

from app.db.repeating_timer import RepeatingTimer
from app.db.write_outcome import has_written, mark_written, reset_written
from app.errors import DatabaseUnavailable

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

MAX_CALLS = 128  # calls in one statement: as many as a process serves at once
# Rows in one statement. With 1000, all callers arrive and leave together, and the database and the
# server wait for each other in turns.
MAX_WEIGHT = 400


class _Call(Generic[T, R]):
    __slots__ = ("item", "result")

    def __init__(self, item: T, result: "asyncio.Future[R]") -> None:
        self.item = item
        self.result = result


class Batcher(Generic[K, T, R]):
    """Runs one shared statement at a time for each key (a lane). With two at a time the statements
    were smaller, and single enqueues cost the database a quarter more.

    `run` gets the key and the items of its calls, and returns one result for each, in the same
    order. `weigh` returns the number of rows of an item. A call of `max_weight` rows or more waits
    for no other call and runs a statement of its own.

    A call returns after the commit. A bad row fails only its own call: if the database rejects a
    shared statement, each call is retried alone. Calls that have waited `max_wait_seconds` for a
    statement that does not finish fail with `not_done`.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[K, list[T]], Awaitable[Sequence[R]]],
        max_wait_seconds: float,
        weigh: Callable[[T], int],
        max_weight: int = MAX_WEIGHT,
    ) -> None:
        self._name = name
        self._run = run
        self._max_wait_seconds = max_wait_seconds
        self._weigh = weigh
        self._max_weight = max_weight
        # Has an entry for every key with a running statement.
        self._waiting: dict[K, list[_Call[T, R]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def add(self, key: K, item: T) -> R:
        """Returns the result of the item, after the commit of the statement that it was part of."""
        if self._weigh(item) >= self._max_weight:
            (result,) = await self._run(key, [item])
            return result
        if self._loop is None:
            # Cached, because each call of get_running_loop() makes a system call (getpid).
            self._loop = asyncio.get_running_loop()
        call: _Call[T, R] = _Call(item, self._loop.create_future())
        waiting = self._waiting.get(key)
        if waiting is None:
            self._begin(key, call)
        else:
            waiting.append(call)
        try:
            result = await call.result
        except DatabaseUnavailable as error:
            if error.outcome == "unknown":
                mark_written()
            # A new exception: this caller may have written earlier, and an exception belongs to one
            # task.
            raise DatabaseUnavailable(error.detail, "unknown" if has_written() else "not_done") from error
        mark_written()
        return result

    async def finish(self) -> None:
        """Waits until every call has its result."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, key: K, first: _Call[T, R]) -> None:
        """Starts a task with an empty context: what this caller has written does not concern the
        calls that share its statement. The task starts at the next iteration of the event loop, so
        the batch includes every call that was read from the sockets in the same iteration."""
        self._waiting[key] = [first]
        self._start(self._serve(key))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=self._name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: K) -> None:
        try:
            while self._waiting[key]:
                waiting = self._waiting[key]
                size = self._batch_size(waiting)
                batch, self._waiting[key] = waiting[:size], waiting[size:]
                timer = RepeatingTimer(self._max_wait_seconds, partial(self._time_out, key))
                try:
                    await self._run_batch(key, batch)
                finally:
                    timer.stop()
        finally:
            _fail(self._waiting.pop(key), DatabaseUnavailable("the broker is stopping", "not_done"))

    def _batch_size(self, waiting: Sequence[_Call[T, R]]) -> int:
        weights = accumulate(self._weigh(call.item) for call in waiting[:MAX_CALLS])
        return max(1, sum(weight <= self._max_weight for weight in weights))

    def _time_out(self, key: K) -> None:
        """Fails every waiting call: the timer fires again only after another `max_wait_seconds`."""
        waiting, self._waiting[key] = self._waiting[key], []
        _fail(waiting, DatabaseUnavailable("the previous statement on this lane is still running", "not_done"))

    async def _run_batch(self, key: K, batch: Sequence[_Call[T, R]]) -> None:
        reset_written()
        try:
            results = await self._run(key, [call.item for call in batch])
        except Exception as error:
            if len(batch) == 1 or not _may_concern_one_row(error):
                _fail(batch, error)
            else:
                # In parallel: the others do not wait for the call that may wait for a lock again.
                for call in batch:
                    self._start(self._run_batch(key, [call]))
        else:
            for call, result in zip(batch, results, strict=True):
                if not call.result.done():
                    call.result.set_result(result)


def _may_concern_one_row(error: Exception) -> bool:
    """Whether the server reported that it did nothing, and the cause may be one row that is invalid
    or locked. An unavailable server is not such a cause."""
    return isinstance(error, asyncpg.PostgresError) or isinstance(error.__cause__, asyncpg.LockNotAvailableError)


def _fail(batch: Sequence[_Call[T, R]], error: Exception) -> None:
    for call in batch:
        if not call.result.done():
            call.result.set_exception(error)
