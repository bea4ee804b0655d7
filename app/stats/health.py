"""Decides whether a queue is healthy, from the health limits of the queue. Does no I/O."""

from collections.abc import Iterator

from app.http.schema_types import UnsetType
from app.queues.schemas import HealthLimits

LEVELS = ("ok", "warning", "critical")
_WARNING, _CRITICAL = 1, 2  # indexes in LEVELS
WARNING_SHARE = 0.8  # from this share of its limit on, a value is worth a warning
STALE_SECONDS = 300  # a ready job that waits this long while no poller waits is worth a warning


def assess(
    limits: HealthLimits, *, depth: int, age: int | None, dead: int, waiting_polls: int
) -> tuple[str, list[str]]:
    """Returns the verdict on a queue (the level of the worst reason), and all reasons."""
    reasons = list(_reasons(limits, depth, age, dead, waiting_polls))
    return LEVELS[max((level for level, _ in reasons), default=0)], [reason for _, reason in reasons]


def _reasons(
    limits: HealthLimits, depth: int, age: int | None, dead: int, waiting_polls: int
) -> Iterator[tuple[int, str]]:
    """Yields the reasons why the queue is not healthy, each with its index in LEVELS."""
    yield from _check_limit(limits.max_depth, depth, "1 job is ready" if depth == 1 else f"{depth} jobs are ready")
    yield from _check_limit(limits.max_age_seconds, age or 0, f"the oldest ready job has waited {age or 0} s")
    letters = "1 job became a dead letter" if dead == 1 else f"{dead} jobs became dead letters"
    yield from _check_limit(limits.max_dead_per_hour, dead, f"{letters} within the last hour")
    if age is not None and age > STALE_SECONDS and waiting_polls == 0:
        yield _WARNING, f"the oldest ready job has waited {age} s, and no poll is waiting"


def _check_limit(limit: int | UnsetType, value: int, reason: str) -> Iterator[tuple[int, str]]:
    """Yields the reason and its severity if the value has reached the limit or is close to it."""
    if isinstance(limit, UnsetType):
        return
    if value > limit:
        yield _CRITICAL, f"{reason}; the limit is {limit}"
    elif value > 0 and value >= WARNING_SHARE * limit:
        yield _WARNING, f"{reason}, {'at' if value == limit else 'close to'} the limit of {limit}"
