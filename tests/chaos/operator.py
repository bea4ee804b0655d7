"""An operator: while jobs go through, pauses and resumes a queue, purges another, replays, moves and purges dead letters, revokes an API
key, and lists leases, to find expired ones. Its calls are recorded like those of any client."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tests.api import Json
from tests.chaos.client import ApiKeys, Client, Part, instant, pause
from tests.chaos.history import History, Item, now
from tests.chaos.options import Options, from_json
from tests.chaos.workload import MOVED, PAUSED, PURGED, WIDE, WORK

LETTERS = 20  # dead letters per call: as many as the sample in a response
MOVES = 5
REVOKES_AT = 0.4  # share of the time in which jobs are sent


class Operator:
    def __init__(
        self, options: Options, client: Client, doomed: list[str], dice: random.Random, stopping: asyncio.Event
    ) -> None:
        self.options = options
        self._client = client
        self._doomed = doomed  # ids of API keys to revoke
        self._dice = dice
        self._stopping = stopping

    async def run(self) -> None:
        """Ends with no queue paused."""
        revoke_at = now() + self.options.load_seconds * REVOKES_AT
        halts = asyncio.create_task(self._pause_and_resume())
        actions: list[Callable[[], Awaitable[object]]] = [
            self._purge,
            self._replay,
            self._move,
            self._forget,
            self._look,
            self._look,
        ]
        while not self._stopping.is_set():
            await self._dice.choice(actions)()
            if self._doomed and now() > revoke_at:
                await self._revoke(self._doomed.pop())
            await self._rest(self.options.operator)
        await halts

    async def _rest(self, seconds: float) -> None:
        """Waits so many seconds, or until the run is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _pause_and_resume(self) -> None:
        while not self._stopping.is_set():
            await self._rest(self.options.halt * self._dice.uniform(0.2, 0.5))
            await self._call(Part("pause", queue=PAUSED), f"/queues/{PAUSED}/pause", {})
            await self._rest(self.options.halt * self._dice.uniform(0.7, 1))
            await self._call(Part("resume", queue=PAUSED), f"/queues/{PAUSED}/resume", None)

    async def _purge(self) -> None:
        """Removes the waiting jobs of one queue, of which no record is kept."""
        await self._call(Part("purge", queue=PURGED), f"/queues/{PURGED}/purge", {"dry_run": False})

    # Dead letters

    async def _replay(self) -> None:
        """Replays in place: the job keeps its id, its attempts and crashes start at 0."""
        letters = await self._letters(self._dice.choice((WORK, WIDE)))
        if letters:
            part = Part("replay", letters, read=lambda body: [Item(id=id) for id in body["sample"]])
            await self._call(part, "/dead-letters/replay", {"ids": [letter.id for letter in letters]})

    async def _move(self) -> None:
        """Replays into another queue: the dead letter is removed, and a new job is stored."""
        for letter in (await self._letters(WIDE))[:MOVES]:
            part = Part("replay", [letter], MOVED, read=partial(_moved, letter))
            await self._call(part, "/dead-letters/replay", {"ids": [letter.id], "overrides": {"queue": MOVED}})

    async def _forget(self) -> None:
        """Purges dead letters one at a time, because the other actions would find none otherwise."""
        for letter in (await self._letters(WIDE))[:1]:
            await self._call(Part("purge", [letter]), "/dead-letters/purge", {"ids": [letter.id], "dry_run": False})

    async def _letters(self, queue: str) -> list[Item]:
        answer = await self._client.call_for(
            [Part("letters")], f"/dead-letters?queue={queue}&limit={LETTERS}", None, method="GET"
        )
        return (
            [
                Item(key=letter["payload"].get("key", ""), id=letter["id"], queue=queue)
                for letter in answer.body["items"]
            ]
            if answer.ok
            else []
        )

    # Leases and API keys

    async def _look(self) -> None:
        """Lists the leases and when each ends: the broker must end an expired one soon, even in a paused queue."""
        await self._client.call_for(
            [Part("leases", read=_leases)], "/jobs?state=running&order=asc&limit=1000", None, method="GET"
        )

    async def _revoke(self, key_id: str) -> None:
        await self._call(Part("revoke", [Item(id=key_id)]), f"/api-keys/{key_id}", None, method="DELETE")

    async def _call(self, part: Part, path: str, body: Json | None, method: str = "POST") -> None:
        """Repeats the call until its outcome is known: the second time there is nothing left to do."""
        tries = 0
        while (await self._client.call_for([part], path, body, method=method)).again:
            tries += 1
            await asyncio.sleep(pause(tries, self._dice))


def _moved(letter: Item, body: Json) -> list[Item]:
    return [Item(id=id, replayed_from=letter.id) for id in body["sample"]]


def _leases(body: Json) -> list[Item]:
    jobs = [job for job in body["items"] if "lease_expires_at" in job]
    return [
        Item(
            id=job["id"], queue=job["queue"], deliveries=job["deliveries"], lease_until=instant(job["lease_expires_at"])
        )
        for job in jobs
    ]


async def operate(options: Options, folder: Path, bases: list[str], doomed: list[str]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    keys = ApiKeys.read(folder.parent, "operator", random.Random(f"{options.seed}/operator/keys"))
    client = Client(bases, History(folder, "operator"), random.Random(f"{options.seed}/operator/ways"), keys)
    await Operator(options, client, doomed, random.Random(f"{options.seed}/operator"), stopping).run()


def main(args: list[str]) -> None:
    asyncio.run(operate(from_json(args[0]), Path(args[1]), args[2].split(","), args[3].split(",")))
