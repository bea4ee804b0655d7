"""Schemas of workers."""

from app.http.schema_types import UNSET, Instant, Int32, ResponseModel, UnsetType


class Worker(ResponseModel):
    """A worker that has polled for jobs or sent a heartbeat.

    `directive` says what the worker should do: `run`, `drain` (finish the jobs that it holds and
    claim no more) or `stop` (release its jobs and exit).
    """

    worker_id: str
    directive: str
    last_seen_at: Instant
    held_leases: Int32


class WorkerList(ResponseModel):
    """Workers, ordered by id."""

    items: list[Worker]
    next_cursor: str | UnsetType = UNSET
