"""A worker: claims and settles at random, with a seed; sometimes it dies or sleeps past its lease.

It retries every settlement until the outcome is known, or until long after the end of the lease.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.api_client import Json
from tests.chaos.client import ApiKeys, Client, Operation, Response, instant, pause
from tests.chaos.history import History, Item, hashed, now, payload_hash
from tests.chaos.options import Options, from_json
from tests.chaos.workload import FEATURES, FIFO, GROUPED, LIMITED, WORK

CLAIMS_WITH_KEY = 0.7  # share of claims with an Idempotency-Key
REPEATED_CLAIMS = 0.05  # share of these claims that are repeated although a response came
HEARTBEATS = 0.1  # share of claims that are extended by a heartbeat before they are settled
CONFLICTING_SETTLEMENTS = 0.02  # share of claims with one job that is settled in two ways at once
SETTLED_WITH_CLAIM = 0.1  # share of claims whose settlements are sent with the next claim
FULL_REPORTS = 0.01  # share of claims after which the worker reports all leases that it holds
RECONCILE_SECONDS = 2.2  # seconds after a claim from which on an unreported lease is released
OUTCOMES = {"complete": 90.0, "fail": 4.0, "fail_without_retry": 1.0, "snooze": 2.0, "release": 3.0}


class Slot:
    """One of the concurrent loops of a worker: claims, processes and settles."""

    def __init__(self, options: Options, proc: str, number: int, client: Client, *, stopping: asyncio.Event) -> None:
        self.options = options
        self._name = f"{proc}.{number}"
        self._is_fifo_consumer = proc.startswith("w0.") and number == 0  # the only consumer of the FIFO queue
        self._client = client
        self._rng = random.Random(f"{options.seed}/{self._name}")
        self._stopping = stopping
        self._claims = 0
        self._pending_settlements: list[tuple[Json, Item]] = []  # settlements to send with the next claim
        self._open_leases: dict[str, Item] = {}  # leases that may not have ended, by token

    async def run(self) -> None:
        while not self._stopping.is_set():
            jobs = await self._claim()
            if jobs:
                await self._process(jobs)
            else:
                await asyncio.sleep(0.02)
        await self._settle_pending()

    # Claiming

    async def _claim(self) -> list[Json]:
        self._claims += 1
        key = f"{self._name}-{self._claims}" if self._rng.random() < CLAIMS_WITH_KEY else ""
        body, until = self._claim_request(), now() + self.options.lease
        response, tries = await self._send_claim(body, key), 0
        while response.should_retry and now() < until:
            tries += 1
            await asyncio.sleep(pause(tries, self._rng))
            if not key:
                break
            response = await self._send_claim(body, key)
        if key and response.ok and self._rng.random() < REPEATED_CLAIMS:
            await self._send_claim(body, key)
        await self._settle_pending()
        return list(response.body["jobs"]) if response.ok and (key or not response.should_retry) else []

    def _queues(self) -> list[str]:
        kind = self._rng.random()
        if self.options.focus not in ("", FIFO) and kind < 0.4:
            return [self.options.focus]
        if kind < 0.65:
            return [WORK] if kind < 0.4 else self._rng.sample((WORK, LIMITED, GROUPED), 3)
        return self._rng.sample((WORK, *FEATURES), 1 + len(FEATURES))

    def _claim_request(self) -> Json:
        queues = self._queues()
        request = {
            "worker_id": self._name,
            "lease_seconds": self.options.lease,
            "wait_seconds": self._rng.choice((0, 0.5, 1.5)),
            "wait_after_settle": self._rng.random() < self.options.wait_after_settle,
        }
        if self._is_fifo_consumer:
            return request | {"queues": [FIFO], "max_jobs": 5}
        return request | {
            "queues": queues,
            "max_jobs": self._rng.choice((1, 5, 20, max(20, min(200, self.options.jobs // 5000)))),
        }

    async def _send_claim(self, body: Json, key: str) -> Response:
        parts = [Operation("claim", read=_claimed_items)]
        if self._pending_settlements:
            items = [item for _, item in self._pending_settlements]
            waits = body["wait_after_settle"] and body["wait_seconds"] > 0
            parts.append(
                Operation("settle", items, waits=waits, read=lambda body: _result_items(body["settled"], items))
            )
            body = body | {"settle": [settlement for settlement, _ in self._pending_settlements]}
        response = await self._client.call_for(parts, "/claim", body, key=key)
        if response.ok:
            self._forget_leases(item for _, item in self._pending_settlements)
            self._pending_settlements = []
            self._open_leases |= {item.token: item for item in _lease_items(response.body["jobs"])}
        return response

    async def _settle_pending(self) -> None:
        """Settles the jobs whose settlement was not sent with a claim."""
        carried, self._pending_settlements = self._pending_settlements, []
        if carried:
            await self._settle(carried)

    # Working

    async def _process(self, jobs: list[Json]) -> None:
        draw = self._rng.random()
        if draw < self.options.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if draw < self.options.crash + self.options.pause:
            await asyncio.sleep(self.options.lease * 1.5)
        if self._rng.random() < (HEARTBEATS if draw >= self.options.crash + self.options.pause else 0.5):
            await self._heartbeat(jobs)
        if self._rng.random() < FULL_REPORTS:
            jobs = await self._report_all_leases(jobs)
        settlements = [self._settlement(job) for job in jobs]
        if self._rng.random() < SETTLED_WITH_CLAIM:
            self._pending_settlements = settlements
        elif settlements and self._rng.random() < CONFLICTING_SETTLEMENTS:
            await asyncio.gather(
                self._settle(settlements),
                self._settle([self._settlement(jobs[0], other_than=settlements[0][1].outcome)]),
            )
        else:
            await self._settle(settlements)

    async def _report_all_leases(self, jobs: list[Json]) -> list[Json]:
        """Reports all leases twice, and returns the jobs that the worker keeps.

        If leases are long enough, it omits one job, which the broker then releases."""
        if self.options.lease <= RECONCILE_SECONDS:
            await self._heartbeat(jobs, holds_all=True)
            return jobs
        await self._heartbeat(jobs)
        await asyncio.sleep(RECONCILE_SECONDS)
        kept = jobs[1:]
        for _ in range(2):
            await self._heartbeat(kept, holds_all=True)
        return kept

    async def _heartbeat(self, jobs: list[Json], *, holds_all: bool = False) -> None:
        """Sends a heartbeat.

        With `holds_all` it releases all other leases; that outcome is unknown."""
        leases = [
            {"job_id": job["id"], "lease_token": job["lease_token"], "lease_seconds": self.options.lease}
            for job in jobs
        ]
        items = _lease_items(jobs)
        if holds_all:
            format_causes = {item.token for item in items}
            omitted = [
                msgspec.structs.replace(item, outcome="release")
                for token, item in self._open_leases.items()
                if token not in format_causes
            ]
            self._client.record("settle", "info", omitted, t0=now())
        await self._client.call(
            "heartbeat",
            "/heartbeat",
            {"worker_id": self._name, "leases": leases} | ({"holds_all": True} if holds_all else {}),
            items=items,
            read=lambda body: [
                _with_result(item, status=result["status"], lease_until=instant(result.get("lease_expires_at")))
                for item, result in zip(items, body["leases"], strict=True)
            ],
        )

    def _settlement(self, job: Json, *, other_than: str = "") -> tuple[Json, Item]:
        failures = {outcome: OUTCOMES[outcome] * self.options.failures for outcome in ("fail", "fail_without_retry")}
        outcomes = {
            outcome: weight
            for outcome, weight in (OUTCOMES | failures).items()
            if other_than not in (outcome, outcome.replace("fail_without_retry", "fail"))
        }
        outcome = self._rng.choices(list(outcomes), list(outcomes.values()))[0]
        body: Json = {
            "job_id": job["id"],
            "lease_token": job["lease_token"],
            "outcome": "fail" if outcome == "fail_without_retry" else outcome,
        }
        if outcome in ("fail", "fail_without_retry"):
            body |= {"error": {"message": "injected failure"}, "retryable": outcome == "fail"}
        if outcome == "snooze":
            body["delay_seconds"] = 1
        if outcome == "complete":
            body["result"] = {"by": self._name, "delivery": job["deliveries"], "n": self._rng.randrange(10**6)}
        item = Item(
            id=job["id"],
            token=hashed(job["lease_token"]),
            outcome=body["outcome"],
            deliveries=job["deliveries"],
            attempt=job["attempt"],
            retryable=body.get("retryable", True),
            result=payload_hash(body["result"]) if "result" in body else "",
        )
        return body, item

    async def _settle(self, settlements: list[tuple[Json, Item]]) -> None:
        """Settles jobs one by one or together.

        Unknown outcomes are retried with the same tokens."""
        if not settlements:
            return
        if len(settlements) > 1 and self._rng.random() < 0.05:
            for settlement in settlements:
                await self._settle([settlement])
            return
        bodies, items = [body for body, _ in settlements], [item for _, item in settlements]
        until, tries = now() + 3 * self.options.lease, 0
        while (await self._settle_once(bodies, items)).should_retry and now() < until:
            tries += 1
            await asyncio.sleep(pause(tries, self._rng))

    async def _settle_once(self, bodies: list[Json], items: list[Item]) -> Response:
        response = await self._send_settlements(bodies, items)
        if not response.should_retry:
            self._forget_leases(items)
        return response

    def _forget_leases(self, items: Iterable[Item]) -> None:
        for item in items:
            self._open_leases.pop(item.token, None)

    async def _send_settlements(self, bodies: list[Json], items: list[Item]) -> Response:
        if len(bodies) > 1:
            return await self._client.call(
                "settle",
                "/settle",
                {"items": bodies},
                items=items,
                read=lambda body: _result_items(body["results"], items),
            )
        path = f"/jobs/{items[0].id}/{items[0].outcome}"
        body = {name: value for name, value in bodies[0].items() if name not in ("job_id", "outcome")}
        return await self._client.call(
            "settle", path, body, items=items, read=lambda body: _result_items([body], items)
        )


def _claimed_items(body: Json) -> list[Item]:
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


def _lease_items(jobs: list[Json]) -> list[Item]:
    return [Item(id=job["id"], token=hashed(job["lease_token"]), deliveries=job["deliveries"]) for job in jobs]


def _result_items(results: list[Json], requested: list[Item]) -> list[Item]:
    return [
        _with_result(
            item,
            status=result["status"],
            state=result.get("state", ""),
            attempt=result.get("attempt", 0),
            run_at=instant(result.get("run_at")),
        )
        for item, result in zip(requested, results, strict=True)
    ]


def _with_result(
    item: Item, *, status: str, state: str = "", attempt: int = 0, run_at: float = 0, lease_until: float = 0
) -> Item:
    return Item(
        id=item.id,
        token=item.token,
        outcome=item.outcome,
        deliveries=item.deliveries,
        retryable=item.retryable,
        result=item.result,
        status=status,
        state=state,
        attempt=attempt,
        run_at=run_at,
        lease_until=lease_until,
    )


async def run_worker(options: Options, proc: str, folder: Path, bases: list[str]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    keys = ApiKeys.read(folder.parent, "worker", random.Random(f"{options.seed}/{proc}/keys"))
    client = Client(bases, History(folder, proc), random.Random(f"{options.seed}/{proc}/ways"), keys)
    slots = [Slot(options, proc, number, client, stopping=stopping) for number in range(options.slots)]
    async with asyncio.TaskGroup() as group:
        for slot in slots:
            group.create_task(slot.run())


def main(args: list[str]) -> None:
    asyncio.run(run_worker(from_json(args[0]), args[1], Path(args[2]), args[3].split(",")))
