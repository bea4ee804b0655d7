"""The long poll: look, sleep until there is something to look for, look again. And the layers that keep a claim from being lost."""

import random
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import md5
from uuid import UUID

import msgspec

from app.db.floor import Floor
from app.db.lanes import KEY_LANES, by_lane, created_at, digest, lanes_of, spread
from app.db.pool import Runs
from app.errors import DatabaseUnavailable, ValidationFailed
from app.jobs.schemas import Progress
from app.jobs.store import metadata_of, tags_of
from app.jobs.wanted import check_lease
from app.leases import store
from app.leases.schemas import ClaimAnswer, ClaimedJob, ClaimJobs
from app.leases.settling import Settling
from app.leases.store import Asked, ClaimedRow
from app.leases.times import Times
from app.leases.verdicts import Ending
from app.leases.waiting import Poll, WaitingRoom, Word
from app.queues.registry import Queues
from app.web.disconnect import Client
from app.web.shapes import UNSET, Raw, Sent, given, or_unset, raw_or_unset
from app.workers.roster import Roster

BUSY_MS = 1000  # how long a refused poll should stay away
JITTER = 0.1  # polls that began together must not end together

_progress = msgspec.json.Decoder(Progress)


class Receipt(Sent):
    """What a claim with a key handed out: enough to hand out the same again."""

    secret: str
    ids: list[UUID]


_receipt = msgspec.json.Decoder(Receipt)


class _NothingTaken(Exception):
    """Rolls back the transaction of a claim with a key."""


class Claiming:
    def __init__(self, floor: Floor, queues: Queues, waiting: WaitingRoom, settling: Settling, roster: Roster, times: Times) -> None:
        self._floor = floor
        self._queues = queues
        self._waiting = waiting
        self._settling = settling
        self._roster = roster
        self._times = times

    async def claim(self, request: ClaimJobs, key: str | None, client: Client) -> ClaimAnswer:
        self._check(request)
        worker_id = given(request.worker_id, None)
        self._roster.seen(worker_id)
        settled = await self._settling.settle(request.settle, "/settle") if request.settle is not UNSET else []
        wait = 0.0 if settled else self._wait(request)
        names = list(dict.fromkeys(given(request.queues, ["default"])))
        types = given(request.job_types, None)
        poll = Poll(names, frozenset(types) if types is not None else None, worker_id)
        client.on_leave(poll.stir)
        with self._waiting.park(poll):
            rows = await self._poll(request, poll, wait, key, client)
            away = 0 if rows or self._serves(worker_id) else BUSY_MS
        return ClaimAnswer(
            jobs=[self._told(row) for row in rows],
            settled=settled,
            directive=self._roster.directive(worker_id),
            poll_after_ms=away,
            server_time=self._floor.now(),
        )

    def _check(self, request: ClaimJobs) -> None:
        settings = self._floor.settings
        if given(request.max_jobs, 1) > settings.max_claim_jobs:
            raise ValidationFailed.at("/max_jobs", f"at most {settings.max_claim_jobs}")
        check_lease(request.lease_seconds, settings, "/lease_seconds")

    def _wait(self, request: ClaimJobs) -> float:
        wait = min(given(request.wait_seconds, 0.0), self._floor.settings.max_wait_seconds)
        return wait * (1 - random.uniform(0, JITTER))

    def _serves(self, worker_id: str | None) -> bool:
        full = self._waiting.parked > self._floor.settings.max_parked_polls
        return not self._waiting.draining and not full and self._roster.directive(worker_id) == "run"

    async def _poll(self, request: ClaimJobs, poll: Poll, wait: float, key: str | None, client: Client) -> list[ClaimedRow]:
        """Layer 1: SQL runs only when there may be something, and only while the client is there."""
        until = time.monotonic() + wait
        while self._serves(poll.worker_id):
            poll.look()
            rows = await self._look(request, poll, key)
            if rows is not None:
                self._took(poll, rows, given(request.max_jobs, 1))
                return await self._delivered(rows, key, client)
            poll.found_nothing()
            left = until - time.monotonic()
            if left <= 0:
                break
            await poll.sleep(left)
            if client.gone:
                self._floor.metrics.parked_left.inc()
                break
        return []

    async def _look(self, request: ClaimJobs, poll: Poll, key: str | None) -> list[ClaimedRow] | None:
        """Jobs; or an empty list for a repeated claim whose leases have all ended; or None: nothing there, wait."""
        asked = Asked(
            worker_id=poll.worker_id,
            secret=secrets.token_hex(16),
            lease_seconds=given(request.lease_seconds, None),
            default_lease_seconds=self._floor.settings.default_lease_seconds,
            max_bytes=self._floor.settings.max_batch_bytes,
            at_least_one=True,
            job_types=given(request.job_types, None),
        )
        most = given(request.max_jobs, 1)
        lanes = await self._lanes(poll.queues)
        if key is None:
            return await self._take(self._floor.db, lanes, most, asked) or None
        rows = await self._take_with_key(key, lanes, most, asked)
        await self._queues.learn({row.lane for row in rows or []})  # the first call may have been another process's
        return rows

    async def _take(self, on: Runs, lanes: Sequence[int], most: int, asked: Asked) -> list[ClaimedRow]:
        taken: list[ClaimedRow] = []
        for lane in lanes:
            try:
                rows = await store.claim(on, lane, most - len(taken), asked, self._floor.now())
            except DatabaseUnavailable:
                if not taken:
                    raise
                break  # what we have is leased and must reach the worker
            taken += rows
            if len(taken) >= most:
                break
            asked = asked._replace(max_bytes=asked.max_bytes - sum(map(_size, rows)), at_least_one=not taken)
        self._count(taken)
        return taken

    async def _lanes(self, names: Sequence[str]) -> list[int]:
        """Queue after queue in order of preference; the lanes of one queue from a random one on, so that none is always last."""
        lanes: list[int] = []
        for queue in await self._queues.find_all(names):
            own = list(lanes_of(queue.id, queue.lanes))
            first = random.randrange(len(own))
            lanes += own[first:] + own[:first]
        return lanes

    def _count(self, rows: Sequence[ClaimedRow]) -> None:
        self._floor.metrics.claimed.inc(len(rows))
        for row in rows:
            if row.crashes == 0:  # after a crash the time since run_at is not time spent waiting
                self._times.record(row.lane, "wait", [(row.run_at, row.started_at)])

    async def _delivered(self, rows: list[ClaimedRow], key: str | None, client: Client) -> list[ClaimedRow]:
        """Layer 2: what nobody is there to take goes back at no cost. Never with a key: the worker will repeat the call, and
        undoing as well would put one job into two hands."""
        if not client.gone or key is not None or not rows:
            return rows
        await self._settling.end([Ending(row.id, row.lease_token, "undo") for row in rows])
        self._floor.metrics.undone.inc(len(rows))
        return []

    async def _take_with_key(self, key: str, lanes: Sequence[int], most: int, asked: Asked) -> list[ClaimedRow] | None:
        """Layer 3: the same key gets the same leases. The row of the key stays locked until we commit, so replays take turns.
        All is asked of this one connection: a second one could be held by somebody who waits for ours."""
        name = digest("claim", key)
        lane = spread(name, KEY_LANES)
        expires_at = self._floor.now() + timedelta(seconds=self._floor.settings.idempotency_seconds)
        with suppress(_NothingTaken):
            async with self._floor.db.transaction() as transaction:
                answer = await store.hold_key(transaction, lane, name, expires_at)
                again = await self._replayed(transaction, _receipt.decode(answer)) if answer else None
                if again is not None:
                    return again
                rows = await self._take(transaction, lanes, most, asked)
                if not rows:
                    raise _NothingTaken  # a key that got nothing need not be remembered: an idle poll writes nothing
                receipt = Receipt(secret=asked.secret, ids=[row.id for row in rows])
                await store.write_key(transaction, lane, name, msgspec.json.encode(receipt).decode())
            return rows
        return None

    async def _replayed(self, on: Runs, receipt: Receipt) -> list[ClaimedRow] | None:
        """The leases that still live, in the same order; none if some were settled; None (claim anew) if all have expired."""
        live: dict[UUID, ClaimedRow] = {}
        settled = False
        for lane, ids in by_lane(receipt.ids, lambda job_id: job_id).items():
            live |= {row.id: row for row in await store.held_leases(on, lane, ids, receipt.secret)}
            traces = await store.traces(on, lane, ids)
            settled |= any(trace.settled_as and trace.lease_token == _token(receipt.secret, trace.id) for trace in traces.values())
        self._floor.metrics.replayed.inc(len(live))
        return [live[job_id] for job_id in receipt.ids if job_id in live] if live or settled else None

    def _took(self, poll: Poll, rows: Sequence[ClaimedRow], most: int) -> None:
        """A full batch may have left more behind."""
        poll.took({Word(self._queues.name(row.lane), row.job_type) for row in rows}, all_there_were=len(rows) < most)

    def _told(self, row: ClaimedRow) -> ClaimedJob:
        return ClaimedJob(
            id=row.id,
            queue=self._queues.name(row.lane),
            job_type=row.job_type,
            payload=Raw(row.payload.encode()),
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            deliveries=row.deliveries,
            lease_token=row.lease_token,
            lease_expires_at=row.lease_expires_at,
            lease_seconds=round((row.lease_expires_at - row.started_at).total_seconds()),
            checkpoint=raw_or_unset(row.checkpoint),
            progress=UNSET if row.progress is None else _progress.decode(row.progress),
            group=or_unset(row.group_key),
            tags=tags_of(row.tags),
            metadata=metadata_of(row.metadata),
            created_at=created_at(row.id),
            traceparent=or_unset(row.traceparent),
            tracestate=or_unset(row.tracestate),
        )


def _size(row: ClaimedRow) -> int:
    """As the claim statement measures it."""
    return store.ENVELOPE_BYTES + sum(
        len(text.encode()) for text in (row.payload, row.checkpoint, row.progress, row.tags, row.metadata) if text
    )


def _token(secret: str, job_id: UUID) -> UUID:
    """As the claim statement makes it."""
    return UUID(md5(f"{secret}{job_id}".encode(), usedforsecurity=False).hexdigest())
