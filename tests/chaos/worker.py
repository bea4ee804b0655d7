"""A worker: claims and settles by seeded dice; sometimes dies, sometimes sleeps beyond its lease.

Every settlement is repeated until it is told what became of it, or the lease is long gone.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

from tests.api import Json
from tests.chaos.client import Answer, Client, instant, pause
from tests.chaos.history import History, Item, hashed, now, payload_hash
from tests.chaos.options import Options, from_json
from tests.chaos.workload import GROUPED, LIMITED, LINE, WORK

KEYED = 0.7  # share of claims with an Idempotency-Key
REPLAYED = 0.05  # share of them that are repeated although they were answered
BEATS = 0.1  # share of claims that are extended before they are settled
RIVALS = 0.02  # share of claims of which one job is settled in two ways at once
OUTCOMES = {"complete": 90.0, "fail": 4.0, "bury": 1.0, "snooze": 2.0, "release": 3.0}


class Slot:
    """One claim at a time."""

    def __init__(self, options: Options, proc: str, number: int, client: Client, *, stopping: asyncio.Event) -> None:
        self.options = options
        self._name = f"{proc}.{number}"
        self._alone = proc.startswith("w0.") and number == 0  # the only consumer of the line
        self._client = client
        self._dice = random.Random(f"{options.seed}/{self._name}")
        self._stopping = stopping
        self._claims = 0

    async def run(self) -> None:
        while not self._stopping.is_set():
            jobs = await self._claim()
            if jobs:
                await self._work_on(jobs)
            else:
                await asyncio.sleep(0.02)

    # Claiming

    async def _claim(self) -> list[Json]:
        self._claims += 1
        key = f"{self._name}-{self._claims}" if self._dice.random() < KEYED else ""
        body, until = self._wish(), now() + self.options.lease
        answer, tries = await self._ask(body, key), 0
        while answer.again and now() < until:
            tries += 1
            await asyncio.sleep(pause(tries, self._dice))
            if not key:
                return []
            answer = await self._ask(body, key)
        if key and answer.ok and self._dice.random() < REPLAYED:
            await self._ask(body, key)
        return list(answer.body["jobs"]) if answer.ok else []

    def _wish(self) -> Json:
        queues = [WORK] if self._dice.random() < 0.6 else self._dice.sample((WORK, LIMITED, GROUPED), 3)
        wish = {"worker_id": self._name, "lease_seconds": self.options.lease, "wait_seconds": self._dice.choice((0, 0.5, 1.5))}
        if self._alone:
            return wish | {"queues": [LINE], "max_jobs": 5}
        return wish | {"queues": queues, "max_jobs": self._dice.choice((1, 5, 20, max(20, min(200, self.options.jobs // 5000))))}

    async def _ask(self, body: Json, key: str) -> Answer:
        return await self._client.call("claim", "/claim", body, key=key, read=_handed_out)

    # Working

    async def _work_on(self, jobs: list[Json]) -> None:
        fate = self._dice.random()
        if fate < self.options.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if fate < self.options.crash + self.options.pause:
            await asyncio.sleep(self.options.lease * 1.5)
        if self._dice.random() < (BEATS if fate >= self.options.crash + self.options.pause else 0.5):
            await self._beat(jobs)
        settlements = [self._settlement(job) for job in jobs]
        if self._dice.random() < RIVALS:
            await asyncio.gather(self._settle(settlements), self._settle([self._settlement(jobs[0], other_than=settlements[0][1].outcome)]))
        else:
            await self._settle(settlements)

    async def _beat(self, jobs: list[Json]) -> None:
        leases = [{"job_id": job["id"], "lease_token": job["lease_token"], "lease_seconds": self.options.lease} for job in jobs]
        items = [Item(id=job["id"], token=hashed(job["lease_token"]), deliveries=job["deliveries"]) for job in jobs]
        await self._client.call(
            "heartbeat",
            "/heartbeat",
            {"worker_id": self._name, "leases": leases},
            items=items,
            read=lambda body: [
                _with(item, status=told["status"], lease_until=instant(told.get("lease_expires_at")))
                for item, told in zip(items, body["leases"], strict=True)
            ],
        )

    def _settlement(self, job: Json, *, other_than: str = "") -> tuple[Json, Item]:
        outcomes = {outcome: weight for outcome, weight in OUTCOMES.items() if other_than not in (outcome, outcome.replace("bury", "fail"))}
        outcome = self._dice.choices(list(outcomes), list(outcomes.values()))[0]
        body: Json = {"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "fail" if outcome == "bury" else outcome}
        if outcome in ("fail", "bury"):
            body |= {"error": {"message": "dice"}, "retryable": outcome == "fail"}
        if outcome == "snooze":
            body["delay_seconds"] = 1
        item = Item(
            id=job["id"], token=hashed(job["lease_token"]), outcome=body["outcome"], deliveries=job["deliveries"], attempt=job["attempt"]
        )
        return body, item

    async def _settle(self, settlements: list[tuple[Json, Item]]) -> None:
        """One by one, or together. What nobody knows is asked again with the same tokens."""
        if len(settlements) > 1 and self._dice.random() < 0.05:
            for settlement in settlements:
                await self._settle([settlement])
            return
        bodies, items = [body for body, _ in settlements], [item for _, item in settlements]
        until, tries = now() + 3 * self.options.lease, 0
        while (await self._settle_once(bodies, items)).again and now() < until:
            tries += 1
            await asyncio.sleep(pause(tries, self._dice))

    async def _settle_once(self, bodies: list[Json], items: list[Item]) -> Answer:
        if len(bodies) > 1:
            return await self._client.call(
                "settle", "/settle", {"items": bodies}, items=items, read=lambda body: _told(body["results"], items)
            )
        path = f"/jobs/{items[0].id}/{items[0].outcome}"
        body = {name: value for name, value in bodies[0].items() if name not in ("job_id", "outcome")}
        return await self._client.call("settle", path, body, items=items, read=lambda body: _told([body], items))


def _handed_out(body: Json) -> list[Item]:
    return [
        Item(
            key=str(job["payload"].get("key", "")),
            id=job["id"],
            queue=job["queue"],
            group=job.get("group", ""),
            attempt=job["attempt"],
            max_attempts=job["max_attempts"],
            deliveries=job["deliveries"],
            token=hashed(job["lease_token"]),
            payload=payload_hash(job["payload"]),
            lease_until=instant(job["lease_expires_at"]),
            db_at=instant(job["lease_expires_at"]) - job["lease_seconds"],
        )
        for job in body["jobs"]
    ]


def _told(results: list[Json], asked: list[Item]) -> list[Item]:
    return [
        _with(item, status=told["status"], state=told.get("state", ""), attempt=told.get("attempt", 0), run_at=instant(told.get("run_at")))
        for item, told in zip(asked, results, strict=True)
    ]


def _with(item: Item, *, status: str, state: str = "", attempt: int = 0, run_at: float = 0, lease_until: float = 0) -> Item:
    return Item(
        id=item.id,
        token=item.token,
        outcome=item.outcome,
        deliveries=item.deliveries,
        status=status,
        state=state,
        attempt=attempt,
        run_at=run_at,
        lease_until=lease_until,
    )


async def labour(options: Options, proc: str, folder: Path, bases: list[str]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    client = Client(bases, History(folder, proc), random.Random(f"{options.seed}/{proc}/ways"))
    slots = [Slot(options, proc, number, client, stopping=stopping) for number in range(options.slots)]
    async with asyncio.TaskGroup() as group:
        for slot in slots:
            group.create_task(slot.run())


def main(args: list[str]) -> None:
    asyncio.run(labour(from_json(args[0]), args[1], Path(args[2]), args[3].split(",")))
