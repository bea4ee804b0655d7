"""Pure: whether a queue is well, by the limits that it is configured with."""

from collections.abc import Iterator

from app.http.schema_types import UnsetType
from app.queues.schemas import HealthLimits

LEVELS = ("ok", "warning", "critical")
NEAR = 0.8  # of a limit: time to look
STALE_SECONDS = 300  # work that waits this long while nobody asks for it deserves a look


def assess(limits: HealthLimits, *, depth: int, age: int | None, dead: int, polls: int) -> tuple[str, list[str]]:
    """The worst of all, and why."""
    found = list(_findings(limits, depth, age, dead, polls))
    return LEVELS[max((level for level, _ in found), default=0)], [reason for _, reason in found]


def _findings(limits: HealthLimits, depth: int, age: int | None, dead: int, polls: int) -> Iterator[tuple[int, str]]:
    yield from _against(limits.max_depth, depth, f"{depth} jobs are ready")
    yield from _against(limits.max_age_seconds, age or 0, f"the oldest ready job has waited {age or 0} s")
    yield from _against(limits.max_dead_per_hour, dead, f"{dead} jobs died within the last hour")
    if age is not None and age > STALE_SECONDS and polls == 0:
        yield 1, f"the oldest ready job has waited {age} s and no poll is waiting here"


def _against(limit: int | UnsetType, value: int, what: str) -> Iterator[tuple[int, str]]:
    if isinstance(limit, UnsetType):
        return
    if value > limit:
        yield 2, f"{what}, at most {limit} are well"
    elif value > 0 and value >= NEAR * limit:
        yield 1, f"{what}, near the limit of {limit}"
