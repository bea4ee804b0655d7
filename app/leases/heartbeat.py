"""Handles heartbeats: extends and reconciles leases, and reports lost leases and cancellations."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from asyncpg import Record

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane, lane_of
from app.db.pool import uses_reserved_connections
from app.errors import Fault, LeaseLost, NotFound, raise_for_faults
from app.http.authorization import Access
from app.http.bodies import user_data_fault
from app.http.schema_types import UNSET, raw_to_text, to_json_text, value_or
from app.jobs.bulk_insert import MAX_STATEMENT_BYTES
from app.jobs.rows import public_state
from app.jobs.validation import lease_fault
from app.leases import store
from app.leases.completion_batcher import parse_token
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import LeaseEnd
from app.leases.rows import HeartbeatParams, HeartbeatRow
from app.leases.schemas import Heartbeat, HeartbeatAnswer, HeldLease, LeaseBeat, LeaseStatus
from app.leases.validation import check_count
from app.queues.cache import QueueCache
from app.slices import by_size, map_in_slices
from app.workers.registry import WorkerRegistry

LeaseId = tuple[UUID, UUID]  # job id and token: a worker may list a job twice, once with a stale token

# Leases younger than this do not count as unreported: the response of their claim may still be on
# its way.
RECONCILE_AFTER = timedelta(seconds=2)
HEARTBEATS_PER_LEASE = 3  # so that one lost heartbeat does not cost the lease
# The minimum of next_heartbeat_ms. No heartbeat extends a lease beyond the deadline of its run.
# Without a minimum, the worker would send heartbeats ever faster as the deadline comes closer, and
# without any pause in the second after the deadline (DEADLINE_GRACE).
MIN_HEARTBEAT_MS = 100


class HeartbeatService:
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, lease_ender: LeaseEnder, workers: WorkerRegistry
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._lease_ender = lease_ender
        self._workers = workers

    @uses_reserved_connections
    async def extend(self, heartbeat: Heartbeat, access: Access) -> HeartbeatAnswer:
        leases = value_or(heartbeat.leases, [])
        await self._check_leases(leases)
        received_at = self._infra.now()
        self._workers.record_seen(heartbeat.worker_id, access.caller)
        visible = await self._queues.accessible_ids((lease.job_id for lease in leases), access)
        extended = await self._extend([lease for lease in leases if lease.job_id in visible])
        requeued = (
            await self._reconcile(heartbeat.worker_id, leases, received_at, access)
            if value_or(heartbeat.holds_all, False)
            else []
        )
        return HeartbeatAnswer(
            directive=self._workers.directive(heartbeat.worker_id),
            next_heartbeat_ms=self._next_heartbeat_ms(extended.values()),
            leases=await map_in_slices(lambda lease: _to_status(lease.job_id, extended.get(_lease_id(lease))), leases),
            released=requeued,
            server_time=self._infra.now(),
        )

    @uses_reserved_connections
    async def extend_one(self, job_id: UUID, heartbeat: LeaseBeat) -> LeaseStatus:
        lease = HeldLease(
            job_id=job_id,
            lease_token=heartbeat.lease_token,
            lease_seconds=heartbeat.lease_seconds,
            progress=heartbeat.progress,
            checkpoint=heartbeat.checkpoint,
        )
        raise_for_faults(self._find_faults(lease))
        row = (await self._extend([lease])).get(_lease_id(lease))
        if row is None:
            records = await store.settlement_records(
                self._infra.db, lane_of(job_id), [job_id], self._infra.retention_now()
            )
            record = records.get(job_id)
            if record is None:
                raise NotFound(f"no job {job_id}")
            raise LeaseLost(job_id, public_state(record.state), record.attempt)
        return _to_status(job_id, row)

    async def _check_leases(self, leases: Sequence[HeldLease]) -> None:
        check_count(leases, "leases", self._infra.settings)
        faults = await map_in_slices(lambda item: self._find_faults(item[1], f"/leases/{item[0]}"), enumerate(leases))
        raise_for_faults(fault for pair in faults for fault in pair)

    def _find_faults(self, heartbeat: LeaseBeat, pointer: str = "") -> tuple[Fault | None, Fault | None]:
        """Returns the faults of the lease length and of the checkpoint.

        Raises PayloadTooLarge if the checkpoint is too large.
        """
        settings = self._infra.settings
        return (
            lease_fault(heartbeat.lease_seconds, settings, f"{pointer}/lease_seconds"),
            user_data_fault(heartbeat.checkpoint, settings.max_payload_bytes, f"{pointer}/checkpoint"),
        )

    async def _extend(self, leases: Sequence[HeldLease]) -> dict[LeaseId, HeartbeatRow]:
        extended: dict[LeaseId, HeartbeatRow] = {}
        default = self._infra.settings.default_lease_seconds
        for lane, leases_of_lane in group_by_lane(leases, lambda lease: lease.job_id).items():
            for batch in by_size(leases_of_lane, _checkpoint_bytes, MAX_STATEMENT_BYTES):
                heartbeats = await map_in_slices(_to_params, batch)
                async with self._infra.db.autocommit() as connection:
                    rows = await store.heartbeat(connection, lane, heartbeats, self._infra.now(), default)
                extended |= {(row.id, row.lease_token): row for row in rows}
        return extended

    async def _reconcile(
        self, worker_id: str, leases: Sequence[HeldLease], received_at: datetime, access: Access
    ) -> list[UUID]:
        """Requeues jobs whose leases are missing from two heartbeats of the worker in a row.

        This is layer 4 of the four that long_poll.py lists: it recovers jobs whose claim response
        never arrived.
        """
        unreported = await self._unreported_leases(worker_id, leases, received_at, access)
        await self._mark_unreported([row for row in unreported if row["unreported_since"] is None], received_at)
        requeued = await self._lease_ender.end(
            [
                LeaseEnd(row["id"], row["lease_token"], "reconcile")
                for row in unreported
                if row["unreported_since"] is not None
            ]
        )
        self._infra.metrics.reconciled.inc(len(requeued))
        return [row.id for row in requeued]

    async def _unreported_leases(
        self, worker_id: str, leases: Sequence[HeldLease], received_at: datetime, access: Access
    ) -> list[Record]:
        """Returns the leases of the worker that its heartbeat does not list.

        Omits leases in queues that the caller cannot access, because a caller can send the id of
        any worker. Omits leases that are younger than RECONCILE_AFTER.
        """
        listed = {_lease_id(lease) for lease in leases}
        rows = await store.leases_of_worker(self._infra.db, worker_id, received_at - RECONCILE_AFTER)
        visible = await self._queues.accessible_ids((row["id"] for row in rows), access)
        return [row for row in rows if row["id"] in visible and (row["id"], row["lease_token"]) not in listed]

    async def _mark_unreported(self, rows: Sequence[Record], now: datetime) -> None:
        for lane, rows_of_lane in group_by_lane(rows, lambda row: row["id"]).items():
            ids, tokens = [row["id"] for row in rows_of_lane], [row["lease_token"] for row in rows_of_lane]
            await store.mark_unreported(self._infra.db, lane, ids, tokens, now)

    def _next_heartbeat_ms(self, extended: Iterable[HeartbeatRow]) -> int:
        default = timedelta(seconds=self._infra.settings.default_lease_seconds)
        shortest = min((row.lease_expires_at - self._infra.now() for row in extended), default=default)
        return max(MIN_HEARTBEAT_MS, shortest // timedelta(milliseconds=1) // HEARTBEATS_PER_LEASE)


def _lease_id(lease: HeldLease) -> LeaseId:
    return lease.job_id, parse_token(lease.lease_token)


def _checkpoint_bytes(lease: HeldLease) -> int:
    return 0 if lease.checkpoint is UNSET else len(lease.checkpoint)


def _to_params(lease: HeldLease) -> HeartbeatParams:
    return HeartbeatParams(
        id=lease.job_id,
        token=parse_token(lease.lease_token),
        lease_seconds=value_or(lease.lease_seconds, None),
        progress=to_json_text(lease.progress),
        checkpoint=raw_to_text(lease.checkpoint),
    )


def _to_status(job_id: UUID, row: HeartbeatRow | None) -> LeaseStatus:
    if row is None:
        return LeaseStatus(job_id=job_id, status="lost", action="abandon")
    action = "cancel" if row.cancel else "continue"
    return LeaseStatus(job_id=job_id, status="extended", action=action, lease_expires_at=row.lease_expires_at)
