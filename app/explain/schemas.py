"""Schemas of explanations."""

from app.http.schema_types import UNSET, UUID, Instant, Int32, ResponseModel, UnsetType


class Reason(ResponseModel, kw_only=True):
    """A reason why a job is not running.

    `code` is for programs, `detail` for people. The other fields are the times, limits and jobs
    that cause the reason.

    Codes of a job that is held back: `not_due`, `waiting_for_jobs`, `queue_paused`,
    `queue_at_limit`, `rate_limited`, `group_at_limit`, `group_at_rest` (the group is cooling down),
    `waits_for_turn` (the job waits to be admitted), `jobs_ahead`, `no_worker`. Codes of other jobs:
    `claimable`, `running`, `cancel_requested` (after `running`), `completed`, `dead`, `cancelled`.
    """

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
    """Why a job is not running: every reason that applies now."""

    state: str
    reasons: list[Reason]
