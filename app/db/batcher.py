"""Many callers, one statement: who comes while one is on its way shares the next. Nobody waits for a timer."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextvars import Context
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar

import asyncpg

from app.db.every import Timer
from app.db.write_outcome import has_written, mark_written, reset_written
from app.errors import DatabaseUnavailable

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

MAX_CALLS = 128  # callers in one statement: as many as a process serves at once
MAX_WEIGHT = 400  # rows in one statement. With 1000 all callers come and go together, and database and server wait for each other in turns


class _Waiting(Generic[T, R]):
    __slots__ = ("answer", "thing")

    def __init__(self, thing: T, answer: "asyncio.Future[R]") -> None:
        self.thing = thing
        self.answer = answer


class Batcher(Generic[K, T, R]):
    """One shared statement at a time for each key (a lane): with two at a time they were smaller, and single enqueues cost the database a
    quarter more. `run` gets the key and what its callers brought, and answers each, in their order. `weigh` tells how many rows a caller's
    thing is; who has as many as may share (`heaviest`) waits for nobody and has a statement of his own.

    Every caller is answered after the commit. One caller's bad row never fails another's: if the database refuses what they brought
    together, each is tried alone. Who has waited for `patience` seconds behind a statement that does not end goes away unserved.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[K, list[T]], Awaitable[Sequence[R]]],
        patience: float,
        weigh: Callable[[T], int],
        heaviest: int = MAX_WEIGHT,
    ) -> None:
        self._name = name
        self._run = run
        self._patience = patience
        self._weigh = weigh
        self._heaviest = heaviest
        self._lines: dict[K, list[_Waiting[T, R]]] = {}  # those of which somebody is being served
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def add(self, key: K, thing: T) -> R:
        if self._weigh(thing) >= self._heaviest:
            (alone,) = await self._run(key, [thing])
            return alone
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # asks the operating system, each time
        answer: asyncio.Future[R] = self._loop.create_future()
        waiting = _Waiting(thing, answer)
        line = self._lines.get(key)
        if line is None:
            self._begin(key, waiting)
        else:
            line.append(waiting)
        try:
            result = await answer
        except DatabaseUnavailable as error:
            if error.outcome == "unknown":
                mark_written()
            # Its own, as this caller may have written something before; and what is raised belongs to one task.
            raise DatabaseUnavailable(error.detail, "unknown" if has_written() else "not_done") from error
        mark_written()
        return result

    async def finish(self) -> None:
        """Until all who have come are answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, key: K, first: _Waiting[T, R]) -> None:
        """In a context of its own: what this caller has done before does not concern those who share its statement. It begins when the
        loop comes round, so that all who have come in with the same look at the sockets are in it."""
        self._lines[key] = [first]
        self._start(self._serve(key))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=self._name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: K) -> None:
        try:
            while self._lines[key]:
                line = self._lines[key]
                few = self._portion(line)
                batch, self._lines[key] = line[:few], line[few:]
                timer = Timer(self._patience, partial(self._send_away, key))
                try:
                    await self._answer(key, batch)
                finally:
                    timer.stop()
        finally:
            _fail(self._lines.pop(key), DatabaseUnavailable("the broker is stopping", "not_done"))

    def _portion(self, line: Sequence[_Waiting[T, R]]) -> int:
        weights = accumulate(self._weigh(waiting.thing) for waiting in line[:MAX_CALLS])
        return max(1, sum(weight <= self._heaviest for weight in weights))

    def _send_away(self, key: K) -> None:
        """All who are in line: the next look at them may be as far away again."""
        line, self._lines[key] = self._lines[key], []
        _fail(line, DatabaseUnavailable("the statement before this one does not end", "not_done"))

    async def _answer(self, key: K, batch: Sequence[_Waiting[T, R]]) -> None:
        reset_written()
        try:
            answers = await self._run(key, [waiting.thing for waiting in batch])
        except Exception as error:
            if len(batch) == 1 or not _may_be_of_one_row(error):
                _fail(batch, error)
            else:
                for waiting in batch:  # nobody waits for the one that may have to wait again
                    self._start(self._answer(key, [waiting]))
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)


def _may_be_of_one_row(error: Exception) -> bool:
    """The server has said that it did nothing, and not for want of itself: one of the rows is bad, or in other hands."""
    return isinstance(error, asyncpg.PostgresError) or isinstance(error.__cause__, asyncpg.LockNotAvailableError)


def _fail(batch: Sequence[_Waiting[T, R]], error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
