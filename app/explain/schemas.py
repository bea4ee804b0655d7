"""What is told about a job that is not running."""

from app.http.schema_types import UNSET, UUID, Instant, Int32, ResponseModel, UnsetType


class Reason(ResponseModel, kw_only=True):
    """One thing that holds the job back, for programs (`code`) and for people (`detail`), with its facts. Codes: not_due, waiting_for_jobs,
    queue_paused, queue_at_limit, rate_limited, group_at_limit, group_at_rest, waits_for_turn, jobs_ahead, no_worker; and for jobs that
    nothing holds back: claimable, running, completed, dead, cancelled."""

    code: str
    detail: str
    since: Instant | UnsetType = UNSET
    until: Instant | UnsetType = UNSET
    job_ids: list[UUID] | UnsetType = UNSET
    ahead: Int32 | UnsetType = UNSET
    limit: Int32 | UnsetType = UNSET
    running: Int32 | UnsetType = UNSET
    group: str | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Explanation(ResponseModel):
    """Why a job is not running: all reasons that hold now."""

    state: str
    reasons: list[Reason]
