"""A lease as its worker is told of it."""

from uuid import UUID

import msgspec

from app.db.lanes import created_at
from app.jobs.schemas import Progress
from app.jobs.store import metadata_of, tags_of
from app.leases.schemas import ClaimedJob, ParentResult
from app.leases.store import ClaimedRow
from app.web.shapes import UNSET, Raw, or_unset, raw_or_unset

_progress = msgspec.json.Decoder(Progress)


def told(row: ClaimedRow, queue: str, parents: dict[UUID, ParentResult] | None) -> ClaimedJob:
    return ClaimedJob(
        id=row.id,
        queue=queue,
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
        deadline_at=or_unset(row.deadline_at),
        parent_results=UNSET if parents is None else [parents.get(one) or _gone(one) for one in row.depends_on or ()],
        tags=tags_of(row.tags),
        metadata=metadata_of(row.metadata),
        created_at=created_at(row.id),
        traceparent=or_unset(row.traceparent),
        tracestate=or_unset(row.tracestate),
    )


def _gone(job_id: UUID) -> ParentResult:
    return ParentResult(job_id=job_id, state="gone")
