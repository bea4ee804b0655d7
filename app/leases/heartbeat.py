"""Heartbeats: extend what is held, tell what is lost or cancelled, take back what a worker no longer lists."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import by_lane, lane_of
from app.db.pool import uses_reserved_connections
from app.enqueue.defaults import lease_fault
from app.errors import BatchTooLarge, Fault, LeaseLost, NotFound, refuse
from app.http.authorization import Access
from app.http.request_body import check_user_data
from app.http.schema_types import encoded, text_of, value_or
from app.jobs.store import public_state
from app.leases import store
from app.leases.retry_decision import LeaseEnd
from app.leases.schemas import Heartbeat, HeartbeatAnswer, HeldLease, LeaseBeat, LeaseStatus
from app.leases.settle import SettlementService, token_of
from app.leases.store import HeartbeatRow
from app.queues.cache import QueueCache
from app.workers.registry import WorkerRegistry

Lease = tuple[UUID, UUID]  # a job and the token; a job may be listed with a stale one too

RECONCILE_AFTER = timedelta(seconds=2)  # a claim's answer may still be on its way: its leases are not missed yet
HEARTBEATS_PER_LEASE = 3  # one lost heartbeat must not cost the lease


class HeartbeatService:
    def __init__(
        self, infra: Infrastructure, queues: QueueCache, settlements: SettlementService, workers: WorkerRegistry
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._settlements = settlements
        self._workers = workers

    @uses_reserved_connections
    async def extend(self, heartbeat: Heartbeat, access: Access) -> HeartbeatAnswer:
        held = value_or(heartbeat.leases, [])
        self._check(held)
        begun = self._infra.now()
        self._workers.record_seen(heartbeat.worker_id, access.caller)
        reached = await self._queues.visible_to((lease.job_id for lease in held), access)
        beats = await self._extend([lease for lease in held if lease.job_id in reached])
        released = (
            await self._reconcile(heartbeat.worker_id, held, begun, access)
            if value_or(heartbeat.holds_all, False)
            else []
        )
        return HeartbeatAnswer(
            directive=self._workers.directive(heartbeat.worker_id),
            next_heartbeat_ms=self._next_ms(beats.values()),
            leases=[_status(lease.job_id, beats.get(_lease(lease))) for lease in held],
            released=released,
            server_time=self._infra.now(),
        )

    @uses_reserved_connections
    async def extend_one(self, job_id: UUID, beat: LeaseBeat) -> LeaseStatus:
        lease = HeldLease(
            job_id=job_id,
            lease_token=beat.lease_token,
            lease_seconds=beat.lease_seconds,
            progress=beat.progress,
            checkpoint=beat.checkpoint,
        )
        refuse([self._fault(lease)])
        row = (await self._extend([lease])).get(_lease(lease))
        if row is None:
            found = await store.settlement_records(
                self._infra.db, lane_of(job_id), [job_id], self._infra.retention_now()
            )
            trace = found.get(job_id)
            if trace is None:
                raise NotFound(f"no job {job_id}")
            raise LeaseLost(job_id, public_state(trace.state), trace.attempt)
        return _status(job_id, row)

    def _check(self, held: Sequence[HeldLease]) -> None:
        settings = self._infra.settings
        if len(held) > settings.max_settlements:
            raise BatchTooLarge(
                f"{len(held)} leases, at most {settings.max_settlements} are taken", settings.max_settlements
            )
        refuse(self._fault(lease, f"/leases/{index}") for index, lease in enumerate(held))

    def _fault(self, beat: LeaseBeat, at: str = "") -> Fault | None:
        check_user_data(beat.checkpoint, self._infra.settings.max_payload_bytes, f"{at}/checkpoint")
        return lease_fault(beat.lease_seconds, self._infra.settings, f"{at}/lease_seconds")

    async def _extend(self, held: Sequence[HeldLease]) -> dict[Lease, HeartbeatRow]:
        beats: dict[Lease, HeartbeatRow] = {}
        default = self._infra.settings.default_lease_seconds
        for lane, leases in by_lane(held, lambda lease: lease.job_id).items():
            sent = [
                (
                    lease.job_id,
                    token_of(lease.lease_token),
                    value_or(lease.lease_seconds, None),
                    encoded(lease.progress),
                    text_of(lease.checkpoint),
                )
                for lease in leases
            ]
            async with self._infra.db.held() as connection:
                rows = await store.heartbeat(connection, lane, sent, self._infra.now(), default)
            beats |= {(row.id, row.lease_token): row for row in rows}
        return beats

    async def _reconcile(
        self, worker_id: str, held: Sequence[HeldLease], begun: datetime, access: Access
    ) -> list[UUID]:
        """Layer 4: missing from this heartbeat and the one before means that the claim's answer never arrived. A worker's id is no
        secret: leases in queues that the caller does not reach stay."""
        listed = {_lease(lease) for lease in held}
        rows = await store.leases_of_worker(self._infra.db, worker_id, begun - RECONCILE_AFTER)
        reached = await self._queues.visible_to((row["id"] for row in rows), access)
        missing = [row for row in rows if row["id"] in reached and (row["id"], row["lease_token"]) not in listed]
        first_time = [row for row in missing if row["missing_since"] is None]
        for lane, some in by_lane(first_time, lambda row: row["id"]).items():
            await store.mark_unreported(
                self._infra.db, lane, [row["id"] for row in some], [row["lease_token"] for row in some], begun
            )
        again = [
            LeaseEnd(row["id"], row["lease_token"], "reclaim") for row in missing if row["missing_since"] is not None
        ]
        released = await self._settlements.end(again)
        self._infra.metrics.reconciled.inc(len(released))
        return [row.id for row in released]

    def _next_ms(self, beats: Iterable[HeartbeatRow]) -> int:
        default = timedelta(seconds=self._infra.settings.default_lease_seconds)
        shortest = min((row.lease_expires_at - self._infra.now() for row in beats), default=default)
        return max(0, shortest // timedelta(milliseconds=1) // HEARTBEATS_PER_LEASE)


def _lease(held: HeldLease) -> Lease:
    return held.job_id, token_of(held.lease_token)


def _status(job_id: UUID, row: HeartbeatRow | None) -> LeaseStatus:
    if row is None:
        return LeaseStatus(job_id=job_id, status="lost", action="abandon")
    action = "cancel" if row.cancel else "continue"
    return LeaseStatus(job_id=job_id, status="extended", action=action, lease_expires_at=row.lease_expires_at)
