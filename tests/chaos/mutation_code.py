"""Deliberate bugs that replace functions of the broker while it starts."""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from app.db.clock import DatabaseClock
from app.db.lanes import group_by_lane
from app.db.pool import Database, Executor
from app.db.primary import Connection, PrimaryConnector
from app.dead_letters import store as dead_letters
from app.dead_letters.replay import DeadLetterReplayer, ReplayTime
from app.enqueue import uniqueness
from app.enqueue.draft_writer import DraftWriter
from app.enqueue.drafts import JobDraft
from app.enqueue.job_table import NewBatch
from app.enqueue.parser import JobParser
from app.enqueue.results import EnqueueResult
from app.enqueue.service import EnqueueService
from app.errors import DatabaseUnavailable
from app.jobs import bulk_insert
from app.jobs import store as jobs
from app.jobs.new_jobs import NewJobs
from app.jobs.rows import ClaimedRow, NewJob
from app.jobs.schemas import Job
from app.jobs.updater import JobUpdater
from app.leases import retry_decision
from app.leases import store as leases
from app.leases.caller_claims import CallerClaims
from app.leases.long_poll import LongPoll
from app.leases.retry_decision import LeaseEnd
from app.leases.rows import LeaseRow, RetryDecision, SettledRow
from app.leases.schemas import Settlement, SettleResult
from app.leases.settle import SettlementService
from app.queues.cache import Queue
from app.server.server import Server
from app.settings import Settings

SKEW = 3.0  # seconds by which the clock of each further broker is wrong
# Seconds of a statement on a slow database: in this time a client disconnects, and it retries
# within twice the time.
SLOW = 0.2

_background: set[asyncio.Task[Any]] = set()


def use_broker_clock() -> None:
    skew = SKEW * int(os.environ["CHAOS_BUGGIFY"].rpartition("/")[2])
    DatabaseClock.now = lambda _self: datetime.fromtimestamp(time.time() + skew, UTC)  # type: ignore[assignment, method-assign]


def unordered_locks() -> None:
    """Requeues row by row in random order, as if each row were a call of its own."""
    original = leases.requeue

    async def restore(db: Executor, lane: int, decisions: Sequence[RetryDecision], **rules: Any) -> list[SettledRow]:
        if not isinstance(db, Database):
            return await original(db, lane, decisions, **rules)
        async with db.transaction() as transaction:
            done: list[SettledRow] = []
            for decision in random.sample(list(decisions), len(decisions)):
                done += await original(transaction, lane, [decision], **rules)
                await asyncio.sleep(SLOW / 40)
            return done

    leases.requeue = restore


def rotate_token() -> None:
    original = CallerClaims._leases_of_receipt
    rotate = "UPDATE jobs SET lease_token = gen_random_uuid() WHERE lane = $1 AND id = $2 RETURNING lease_token"

    async def replayed(self: CallerClaims, db: Executor, receipt: Any) -> list[ClaimedRow] | None:
        rows = await original(self, db, receipt)
        return rows and [row._replace(lease_token=await db.value(rotate, row.lane, row.id)) for row in rows]

    CallerClaims._leases_of_receipt = replayed  # type: ignore[method-assign]


def return_despite_key() -> None:
    original = LongPoll._requeue_if_disconnected

    async def delivered(self: LongPoll, rows: list[ClaimedRow], key: str | None, client: Any) -> list[ClaimedRow]:
        if rows and key is not None:
            await asyncio.sleep(SLOW)
            if client.is_disconnected:
                _start_in_background(_undo(self, rows, client))
        return await original(self, rows, key, client)

    async def _undo(self: LongPoll, rows: list[ClaimedRow], client: Any) -> None:
        await asyncio.sleep(2 * SLOW)
        await original(self, rows, None, client)

    LongPoll._requeue_if_disconnected = delivered  # type: ignore[method-assign]


def swallow_errors() -> None:
    original = SettlementService._settle_lane

    async def settle_lane(self: SettlementService, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        try:
            return await original(self, lane, items)
        except DatabaseUnavailable:
            return [SettleResult(job_id=item.job_id, status="settled", state="completed") for item in items]

    SettlementService._settle_lane = settle_lane  # type: ignore[method-assign]


def report_unknown_as_not_done() -> None:
    original = DatabaseUnavailable.__init__

    def init(self: DatabaseUnavailable, detail: str, _outcome: Any, **members: Any) -> None:
        original(self, detail, "not_done", **members)

    DatabaseUnavailable.__init__ = init  # type: ignore[assignment, method-assign]


def acknowledge_before_insert() -> None:
    insert, insert_columns = EnqueueService._insert, EnqueueService._insert_columns

    async def store(self: EnqueueService, items: Sequence[Any], *arguments: Any, **rules: Any) -> list[EnqueueResult]:
        _start_in_background(insert(self, items, *arguments, **rules))
        return [EnqueueResult(item.row.id) for item in items]

    async def store_columns(self: EnqueueService, batch: NewBatch) -> None:
        _start_in_background(insert_columns(self, batch))

    EnqueueService._insert = store  # type: ignore[method-assign]
    EnqueueService._insert_columns = store_columns  # type: ignore[method-assign]


def split_batch_transactions() -> None:
    async def write(
        self: DraftWriter, items: Any, drafts: Sequence[JobDraft], key: Any, *arguments: Any, atomic: bool
    ) -> Any:
        db: Any = self._infra.db
        first_results = await self._acquire_key(db, key, items) if key is not None else None
        if first_results is None:
            await self.write(db, drafts, atomic=atomic)
        return first_results

    DraftWriter.write_in_transaction = write  # type: ignore[method-assign]


def split_keyless_batches() -> None:
    async def insert(self: EnqueueService, batch: NewBatch) -> None:
        for lane, new_jobs in batch.jobs_by_lane.items():
            await bulk_insert.enqueue_all(self._infra.db, lane, new_jobs)
            self._insert_batcher.publish(lane, new_jobs)

    EnqueueService._insert_columns = insert  # type: ignore[method-assign]


def replay_in_two_transactions() -> None:
    """In a replay into another queue, removes the dead letter before the job is stored."""

    async def move(
        self: DeadLetterReplayer,
        queue: Queue,
        lane: int,
        ids: Sequence[UUID],
        replay_times: dict[UUID, ReplayTime],
        overrides: Any,
    ) -> list[UUID]:
        letters = await dead_letters.remove(self._infra.db, lane, ids)
        await asyncio.sleep(SLOW)
        fresh = [self._new_job(letter, queue, replay_times[letter.id], overrides) for letter in letters]
        for target, rows in group_by_lane(fresh, lambda row: row.id).items():
            await jobs.enqueue(self._infra.db, target, rows)
        return [row.id for row in fresh]

    DeadLetterReplayer._move_to_queue = move  # type: ignore[method-assign]


def disable_synchronous_commit() -> None:
    """Sets it in every session, because a session that runs NOTIFY flushes earlier commits."""
    original = PrimaryConnector.connect

    async def connect(self: PrimaryConnector, **options: Any) -> Connection:
        settings = options.pop("server_settings", {}) | {"synchronous_commit": "off"}
        return await original(self, server_settings=settings, **options)

    PrimaryConnector.connect = connect  # type: ignore[method-assign]


def no_retries() -> None:
    original = retry_decision._reason

    def reason(row: LeaseRow, lease_end: LeaseEnd, settings: Settings) -> str | None:
        decided = original(row, lease_end, settings)
        return "attempts_exhausted" if lease_end.outcome == "fail" and decided == "retry_backoff" else decided

    retry_decision._reason = reason


def report_completions_as_lost() -> None:
    """Reports every tenth completion as lost, although it was done."""
    original = SettlementService._settle_lane
    numbers = count(1)

    async def settle_lane(self: SettlementService, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        results = await original(self, lane, items)
        lost = [result.status == "settled" and next(numbers) % 10 == 0 for result in results]
        return [
            msgspec.structs.replace(result, status="lease_lost") if is_lost else result
            for result, is_lost in zip(results, lost, strict=True)
        ]

    SettlementService._settle_lane = settle_lane  # type: ignore[method-assign]


def report_cancel_without_effect() -> None:
    """Reports a waiting job as cancelled, although it keeps waiting."""
    original = JobUpdater.cancel

    async def cancel(self: JobUpdater, job_id: UUID, reason: str | None, caller: str) -> tuple[int, Job]:
        job = await self._reader.get(job_id)
        if job.state not in ("ready", "scheduled", "blocked"):
            return await original(self, job_id, reason, caller)
        return 200, msgspec.structs.replace(job, state="cancelled")

    JobUpdater.cancel = cancel  # type: ignore[method-assign]


def ignore_sigterm() -> None:
    Server.handle_exit = lambda *_: None  # type: ignore[method-assign]


def exit_with_error() -> None:
    original = Server.shutdown

    async def shutdown(self: Server, *arguments: Any) -> None:
        await original(self, *arguments)
        os._exit(1)

    Server.shutdown = shutdown  # type: ignore[assignment, method-assign]


def ignore_pauses() -> None:
    Queue.paused = property(lambda _self: False, lambda _self, _paused: None)  # type: ignore[assignment]


def change_payload() -> None:
    build_job, build_jobs = JobParser.new_job, JobParser.new_jobs

    def change(job: NewJob) -> NewJob:
        return job._replace(payload=job.payload.replace("1.5", "2"))

    def new_job(*args: Any, needs_admission: bool) -> NewJob:
        return change(build_job(*args, needs_admission=needs_admission))

    async def new_jobs(*args: Any) -> NewJobs:
        return NewJobs.of(list(map(change, await build_jobs(*args))))

    JobParser.new_job = new_job  # type: ignore[assignment, method-assign]
    JobParser.new_jobs = new_jobs  # type: ignore[assignment, method-assign]


def skip_unique_check() -> None:
    async def find_no_holders(*_: object) -> dict[UUID, UUID]:
        return {}

    uniqueness._find_holders = find_no_holders  # type: ignore[assignment]


def _start_in_background(work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
