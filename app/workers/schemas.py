"""What is told about a worker."""

from app.http.schema_types import UNSET, Instant, Int32, ResponseModel, UnsetType


class Worker(ResponseModel):
    """A worker that has asked for work. `directive`: run, drain (finish what you hold, take no more) or stop."""

    worker_id: str
    directive: str
    last_seen_at: Instant
    held_leases: Int32


class WorkerList(ResponseModel):
    """Workers in the order of their ids."""

    items: list[Worker]
    next_cursor: str | UnsetType = UNSET
