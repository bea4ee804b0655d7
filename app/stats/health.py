"""Decides whether a queue is healthy, by its configured limits. Pure."""

from collections.abc import Iterator

from app.http.schema_types import UnsetType
from app.queues.schemas import HealthLimits

LEVELS = ("ok", "warning", "critical")
WARNING_SHARE = 0.8  # of a limit
STALE_SECONDS = 300  # a ready job that waits this long while no poller waits is worth a warning


def assess(
    limits: HealthLimits, *, depth: int, age: int | None, dead: int, waiting_polls: int
) -> tuple[str, list[str]]:
    """The most severe level of all findings, and their reasons."""
    findings = list(_findings(limits, depth, age, dead, waiting_polls))
    return LEVELS[max((level for level, _ in findings), default=0)], [reason for _, reason in findings]


def _findings(
    limits: HealthLimits, depth: int, age: int | None, dead: int, waiting_polls: int
) -> Iterator[tuple[int, str]]:
    yield from _check_limit(limits.max_depth, depth, f"{depth} jobs are ready")
    yield from _check_limit(limits.max_age_seconds, age or 0, f"the oldest ready job has waited {age or 0} s")
    yield from _check_limit(limits.max_dead_per_hour, dead, f"{dead} jobs became dead letters within the last hour")
    if age is not None and age > STALE_SECONDS and waiting_polls == 0:
        yield 1, f"the oldest ready job has waited {age} s, and no poll is waiting"


def _check_limit(limit: int | UnsetType, value: int, finding: str) -> Iterator[tuple[int, str]]:
    if isinstance(limit, UnsetType):
        return
    if value > limit:
        yield 2, f"{finding}; the limit is {limit}"
    elif value > 0 and value >= WARNING_SHARE * limit:
        yield 1, f"{finding}, close to the limit of {limit}"
