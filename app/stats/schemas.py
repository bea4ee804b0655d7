"""Response models of the statistics."""

from app.http.schema_types import UNSET, Instant, Int32, Int64, Number, ResponseModel, UnsetType


class StateCounts(ResponseModel):
    """Number of jobs by state, including completed and cancelled jobs that are still kept."""

    scheduled: Int64
    blocked: Int64
    ready: Int64
    running: Int64
    completed: Int64
    dead: Int64
    cancelled: Int64


class Rate(ResponseModel):
    """Number of events in the last minute, five minutes and hour."""

    last_1m: Int64
    last_5m: Int64
    last_60m: Int64


class Rates(ResponseModel):
    """Recent events by kind."""

    enqueued: Rate
    completed: Rate
    failed: Rate
    dead: Rate


class Percentiles(ResponseModel):
    """Percentiles over the last hour in milliseconds, rounded up by at most 25 % and 1 ms."""

    p50_ms: Number
    p95_ms: Number
    p99_ms: Number


class Stats(ResponseModel, kw_only=True):
    """Counts, rates, latencies and health.

    - `verdict` is ok, warning or critical; `reasons` explains the verdict.
    - `waiting_polls` is the number of claim requests that claim or wait at this broker.
    - `workers` is the number of workers that any broker has seen within the last minute. Workers do
      not belong to a queue, so every queue has the same number. An API key without access to all
      queues gets 0.
    """

    queue: str | UnsetType = UNSET
    counts: StateCounts
    oldest_ready_age_seconds: Int64 | UnsetType = UNSET
    rates: Rates
    wait_time: Percentiles | UnsetType = UNSET
    run_time: Percentiles | UnsetType = UNSET
    waiting_polls: Int32
    workers: Int32
    verdict: str
    reasons: list[str]
    server_time: Instant
