"""What the statement `enqueue` stores beside new jobs, so that they are found: a ready span for each
priority, and a lease check for each poller that gets some of them. Also their numbers by state."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.jobs.new_jobs import NewJobs
from app.jobs.rows import NewJob, to_array_text

# A lease is checked this long after the claim at the latest. Claims whose jobs were settled one by
# one leave their lease check behind, and these rows must not pile up until long leases end.
MAX_CHECK_DELAY = timedelta(seconds=60)


def coverage_columns(jobs: NewJobs) -> dict[str, object]:
    """Returns the parameters of `enqueue` that do not describe single jobs."""
    states = jobs.values("state")
    return {
        **_spans(jobs),
        **_checks(jobs),
        "ready": states.count("ready") + states.count("pending"),
        "scheduled": states.count("scheduled"),
        "blocked": states.count("blocked"),
        "running": states.count("running"),
        "enqueued": len(jobs),
    }


def _spans(jobs: NewJobs) -> dict[str, Sequence[object]]:
    ids: dict[int, list[UUID]] = {}
    for state, priority, job_id in zip(*map(jobs.values, ("state", "priority", "id")), strict=True):
        if state == "ready":
            ids.setdefault(priority, []).append(job_id)
    return {
        "span_priorities": [*ids],
        "first_ids": [min(same) for same in ids.values()],
        "last_ids": [max(same) for same in ids.values()],
    }


def _checks(jobs: NewJobs) -> dict[str, Sequence[object]]:
    leased: dict[bytes, list[NewJob]] = {}
    for job in jobs if jobs.columns["lease_token"] else ():
        if job.lease_token is not None:
            leased.setdefault(job.lease_token.bytes[:8], []).append(job)
    return {
        "claims": [*leased],
        "check_at": [min(map(_check_at, same)) for same in leased.values()],
        "check_workers": [same[0].worker_id for same in leased.values()],
        "checked_ids": [to_array_text([job.id for job in same]) for same in leased.values()],
    }


def _check_at(job: NewJob) -> datetime:
    assert job.started_at is not None
    assert job.lease_expires_at is not None
    return min(job.lease_expires_at, job.started_at + MAX_CHECK_DELAY)
