"""Natural batching: calls that arrive while a statement is running share the next one.

No call ever waits for a timer.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Hashable, Iterable, Sequence
from contextvars import Context
from functools import cached_property
from typing import Generic, TypeVar

import asyncpg

from app.db.write_outcome import has_written, mark_written, reset_written
from app.errors import DatabaseUnavailable

L = TypeVar("L", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

# Maximum number of calls in one statement: as many as a process serves at once. Not more, because
# their payloads stay in memory during the statement.
MAX_CALLS = 128
# Maximum number of rows in one statement. With 1000, all calls shared one statement and continued
# at the same time, so the database and the broker waited for each other in turns.
MAX_WEIGHT = 400


class _Call(Generic[T, R]):
    __slots__ = ("item", "result", "weight")

    def __init__(self, item: T, weight: int, result: "asyncio.Future[R]") -> None:
        self.item = item
        self.weight = weight
        self.result = result


class Batcher(Generic[L, T, R]):
    """Collects concurrent calls and runs them as one statement. Only calls of the same lane share a
    statement.

    - A subclass implements `run_batch`, which runs the statement.
    - Each lane has one running statement at a time. With two at a time the statements were smaller,
      and single enqueues cost the database a quarter more.
    - A call of `max_weight` rows or more waits for no other call and runs a statement of its own.
    - A bad row fails only its own call: if the database rejects a shared statement, each call is
      retried alone.
    - Calls that have waited `max_wait_seconds` for the end of the running statement fail with
      `not_done`.
    """

    def __init__(self, name: str, max_wait_seconds: float, max_weight: int = MAX_WEIGHT) -> None:
        self._name = name
        self._max_wait_seconds = max_wait_seconds
        self._max_weight = max_weight
        # Both have an entry for every lane with a running statement.
        self._waiting: dict[L, deque[_Call[T, R]]] = {}
        self._tasks: dict[L, asyncio.Task[None]] = {}
        # Has an entry for every lane with a call that waits for a running statement.
        self._timers: dict[L, asyncio.TimerHandle] = {}
        self._retries: set[asyncio.Task[None]] = set()

    async def run_batch(self, lane: L, items: Sequence[T], /) -> Sequence[R]:
        """Runs one statement for all items. Returns one result for each item, in the same order."""
        raise NotImplementedError

    async def add(self, lane: L, item: T, weight: int) -> R:
        """Adds an item of `weight` rows to the next statement of the lane. Returns the item's
        result after the statement has committed."""
        if weight >= self._max_weight:
            (result,) = await self.run_batch(lane, [item])
            return result
        call: _Call[T, R] = _Call(item, weight, self._loop.create_future())
        self._append(lane, call)
        try:
            result = await call.result
        except DatabaseUnavailable as error:
            if error.outcome == "unknown":
                mark_written()
            # A new exception, because all calls of the batch share `error`, and the outcome of this
            # call also depends on earlier writes of its request.
            raise DatabaseUnavailable(error.detail, "unknown" if has_written() else "not_done") from error
        mark_written()
        return result

    async def finish(self) -> None:
        """Waits, at shutdown, until all shared statements and retries have ended."""
        while tasks := [*self._tasks.values(), *self._retries]:
            await asyncio.wait(tasks)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The running event loop. Cached, because each call of get_running_loop() makes a system
        call (getpid)."""
        return asyncio.get_running_loop()

    def _append(self, lane: L, call: _Call[T, R]) -> None:
        waiting = self._waiting.get(lane)
        if waiting is None:
            self._waiting[lane] = deque((call,))
            self._tasks[lane] = self._create_task(self._serve(lane))
            return
        waiting.append(call)
        if len(waiting) == 1:  # no other call waits; earlier calls are in the running statement
            self._start_timer(lane)

    def _create_task(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Creates a task with an empty context, because the calls of a batch belong to several
        requests. In the context of one request, the writes of that request (`write_outcome`) would
        count for the others, too.

        The task starts at the next iteration of the event loop, so the batch includes every call
        that was read from the sockets in the same iteration.
        """
        return self._loop.create_task(work, name=self._name, context=Context())

    async def _serve(self, lane: L) -> None:
        """Runs batches until no call of this lane waits. If the task is cancelled, the waiting
        calls fail."""
        waiting = self._waiting[lane]
        try:
            while waiting:
                batch = self._take_batch(waiting)
                if waiting:
                    self._start_timer(lane)
                await self._run(lane, batch)
                self._stop_timer(lane)
                if waiting:
                    reset_written()  # the next batch belongs to other requests
        finally:
            self._stop_timer(lane)
            del self._waiting[lane], self._tasks[lane]
            if waiting:
                _fail(waiting, DatabaseUnavailable("the broker is stopping", "not_done"))

    def _take_batch(self, waiting: deque[_Call[T, R]]) -> list[_Call[T, R]]:
        """Removes the calls for the next statement from the waiting calls: as many as MAX_CALLS and
        `max_weight` allow, and at least one."""
        batch = [waiting.popleft()]
        weight = batch[0].weight
        while waiting and len(batch) < MAX_CALLS and (weight := weight + waiting[0].weight) <= self._max_weight:
            batch.append(waiting.popleft())
        return batch

    def _start_timer(self, lane: L) -> None:
        self._timers[lane] = self._loop.call_later(self._max_wait_seconds, self._time_out, lane)

    def _stop_timer(self, lane: L) -> None:
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()

    def _time_out(self, lane: L) -> None:
        """Fails every call that waits for the running statement. The next call that has to wait
        starts another timer."""
        del self._timers[lane]
        waiting = self._waiting[lane]
        _fail(waiting, DatabaseUnavailable("the previous statement on this lane is still running", "not_done"))
        waiting.clear()

    async def _run(self, lane: L, batch: Sequence[_Call[T, R]]) -> None:
        try:
            results = await self.run_batch(lane, [call.item for call in batch])
        except Exception as error:
            if len(batch) == 1 or not _may_concern_one_row(error):
                _fail(batch, error)
            else:
                self._retry_each(lane, batch)
        else:
            for call, result in zip(batch, results, strict=True):
                if not call.result.done():
                    call.result.set_result(result)

    def _retry_each(self, lane: L, batch: Sequence[_Call[T, R]]) -> None:
        """Retries each call alone. The retries run concurrently, so that a retry that waits for a
        row lock again does not delay the others."""
        for call in batch:
            task = self._create_task(self._run(lane, [call]))
            self._retries.add(task)
            task.add_done_callback(self._retries.discard)


def _may_concern_one_row(error: Exception) -> bool:
    """Whether a single invalid or locked row may be the cause of the error. If so, each call is
    retried alone."""
    return isinstance(error, asyncpg.PostgresError) or isinstance(error.__cause__, asyncpg.LockNotAvailableError)


def _fail(batch: Iterable[_Call[T, R]], error: Exception) -> None:
    for call in batch:
        if not call.result.done():
            call.result.set_exception(error)
