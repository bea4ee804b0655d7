"""An operator, during the whole run: pauses and resumes a queue, purges another, replays, moves and
purges dead letters, revokes API keys, and lists leases to find expired ones.

Its calls are recorded like the calls of any client."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tests.api_client import Json
from tests.chaos.client import ApiKeys, Client, Operation, instant, pause
from tests.chaos.history import History, Item, now
from tests.chaos.options import Options, from_json
from tests.chaos.workload import MOVED, PAUSED, PURGED, WIDE, WORK

PAGE_SIZE = 20  # dead letters per call: the size of the sample in a response
MAX_MOVES = 5
REVOKES_AT = 0.4  # fraction of the time in which jobs are enqueued


class Operator:
    def __init__(
        self, options: Options, client: Client, keys_to_revoke: list[str], rng: random.Random, stopping: asyncio.Event
    ) -> None:
        self.options = options
        self._client = client
        self._keys_to_revoke = keys_to_revoke  # ids of API keys to revoke
        self._rng = rng
        self._stopping = stopping

    async def run(self) -> None:
        """Acts until it is stopped. At the end no queue is paused."""
        revoke_at = now() + self.options.load_seconds * REVOKES_AT
        pauses = asyncio.create_task(self._pause_and_resume())
        actions: list[Callable[[], Awaitable[object]]] = [
            self._purge,
            self._replay,
            self._move,
            self._purge_dead_letter,
            self._list_leases,
            self._list_leases,
        ]
        while not self._stopping.is_set():
            await self._rng.choice(actions)()
            if self._keys_to_revoke and now() > revoke_at:
                await self._revoke(self._keys_to_revoke.pop())
            await self._wait(self.options.operator)
        await pauses

    async def _wait(self, seconds: float) -> None:
        """Waits `seconds`, or until the run is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _pause_and_resume(self) -> None:
        while not self._stopping.is_set():
            await self._wait(self.options.halt * self._rng.uniform(0.2, 0.5))
            await self._call(Operation("pause", queue=PAUSED), f"/queues/{PAUSED}/pause", {})
            await self._wait(self.options.halt * self._rng.uniform(0.7, 1))
            await self._call(Operation("resume", queue=PAUSED), f"/queues/{PAUSED}/resume", None)

    async def _purge(self) -> None:
        """Purges the waiting jobs of one queue, of which no record is kept."""
        await self._call(Operation("purge", queue=PURGED), f"/queues/{PURGED}/purge", {"dry_run": False})

    # Dead letters

    async def _replay(self) -> None:
        """Replays in the same queue: the job keeps its id; its attempts and crashes start at 0."""
        letters = await self._dead_letters(self._rng.choice((WORK, WIDE)))
        if letters:
            operation = Operation("replay", letters, read=lambda body: [Item(id=id) for id in body["sample"]])
            await self._call(operation, "/dead-letters/replay", {"ids": [letter.id for letter in letters]})

    async def _move(self) -> None:
        """Replays into another queue: the dead letter is removed and a new job is stored."""
        for letter in (await self._dead_letters(WIDE))[:MAX_MOVES]:
            operation = Operation("replay", [letter], MOVED, read=partial(_moved, letter))
            await self._call(operation, "/dead-letters/replay", {"ids": [letter.id], "overrides": {"queue": MOVED}})

    async def _purge_dead_letter(self) -> None:
        """Purges one dead letter at a time, because otherwise the other actions would find none."""
        for letter in (await self._dead_letters(WIDE))[:1]:
            await self._call(
                Operation("purge", [letter]), "/dead-letters/purge", {"ids": [letter.id], "dry_run": False}
            )

    async def _dead_letters(self, queue: str) -> list[Item]:
        response = await self._client.call_for(
            [Operation("letters")], f"/dead-letters?queue={queue}&limit={PAGE_SIZE}", None, method="GET"
        )
        return (
            [
                Item(key=letter["payload"].get("key", ""), id=letter["id"], queue=queue)
                for letter in response.body["items"]
            ]
            if response.ok
            else []
        )

    # Leases and API keys

    async def _list_leases(self) -> None:
        """Lists leases with their ends: the broker must soon end an expired one, even in a
        paused queue."""
        await self._client.call_for(
            [Operation("leases", read=_leases)], "/jobs?state=running&order=asc&limit=1000", None, method="GET"
        )

    async def _revoke(self, key_id: str) -> None:
        await self._call(Operation("revoke", [Item(id=key_id)]), f"/api-keys/{key_id}", None, method="DELETE")

    async def _call(self, operation: Operation, path: str, body: Json | None, method: str = "POST") -> None:
        """Retries the call until its outcome is known: a retry has nothing left to do."""
        tries = 0
        while (await self._client.call_for([operation], path, body, method=method)).should_retry:
            tries += 1
            await asyncio.sleep(pause(tries, self._rng))


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


async def run_operator(options: Options, folder: Path, bases: list[str], keys_to_revoke: list[str]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    keys = ApiKeys.read(folder.parent, "operator", random.Random(f"{options.seed}/operator/keys"))
    client = Client(bases, History(folder, "operator"), random.Random(f"{options.seed}/operator/ways"), keys)
    await Operator(options, client, keys_to_revoke, random.Random(f"{options.seed}/operator"), stopping).run()


def main(args: list[str]) -> None:
    asyncio.run(run_operator(from_json(args[0]), Path(args[1]), args[2].split(","), args[3].split(",")))
