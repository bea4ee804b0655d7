"""The shapes of schedules."""

from enum import StrEnum
from typing import Any, ClassVar

from app.http.schema_types import (
    UNSET,
    UUID,
    Annotated,
    Instant,
    Meta,
    RequestModel,
    ResponseModel,
    UnsetType,
    integer,
    not_both,
)
from app.jobs.schemas import JobCreate

CronText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        description="Five fields (minute, hour, day, month, weekday), or @hourly, @daily, @weekly, @monthly, @yearly. "
        "On days on which clocks are set, fixed hours fire once, and what runs every hour keeps its pace.",
    ),
]
EverySeconds = Annotated[
    int,
    integer(
        ge=1, le=366 * 24 * 60 * 60, description="Counted from starts_at, or else from when the schedule was made."
    ),
]
TimeZone = Annotated[
    str, Meta(min_length=1, max_length=100, description="IANA name such as Europe/Berlin. Default UTC.")
]


class Misfire(StrEnum):
    """What becomes of runs that nobody fired within 60 seconds: they are skipped, or one job is enqueued for all of them, or one for each.

    With `once`, a later run that is in time counts as that one.
    """

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What becomes of a run whose predecessor has not finished: fire it all the same, or skip it."""

    ALLOW = "allow"
    SKIP = "skip"


class SchedulePreview(RequestModel):
    """When a schedule would run. Either cron or every_seconds."""

    json_schema: ClassVar[dict[str, Any]] = not_both("cron", "every_seconds")

    cron: CronText | UnsetType = UNSET
    every_seconds: EverySeconds | UnsetType = UNSET
    timezone: TimeZone | UnsetType = UNSET


class SchedulePut(SchedulePreview, kw_only=True):
    """When to run, and which job. Either cron or every_seconds."""

    job: Annotated[
        JobCreate,
        Meta(
            description="Each run enqueues it. Without run_at, delay_seconds, expires_at and depends_on, which hold only once."
        ),
    ]
    misfire: (
        Annotated[Misfire, Meta(description="For runs that come more than 60 seconds late. Default skip.")] | UnsetType
    ) = UNSET
    overlap: Annotated[Overlap, Meta(description="Default allow.")] | UnsetType = UNSET
    paused: Annotated[bool, Meta(description="Default: as it is; false for a new schedule.")] | UnsetType = UNSET
    starts_at: Annotated[Instant, Meta(description="No run before.")] | UnsetType = UNSET
    ends_at: Annotated[Instant, Meta(description="No run then or later.")] | UnsetType = UNSET


class Schedule(ResponseModel, kw_only=True):
    """A schedule as it is now. `next_run_at` is absent while it is paused, and when no run is left."""

    name: str
    cron: str | UnsetType = UNSET
    every_seconds: EverySeconds | UnsetType = UNSET
    timezone: str
    job: JobCreate
    misfire: str
    overlap: str
    paused: bool
    starts_at: Instant | UnsetType = UNSET
    ends_at: Instant | UnsetType = UNSET
    next_run_at: Instant | UnsetType = UNSET
    last_run_at: Annotated[Instant, Meta(description="When it last fired.")] | UnsetType = UNSET
    last_job_id: UUID | UnsetType = UNSET
    upcoming: Annotated[list[Instant], Meta(description="The next five runs.")]
    created_at: Instant
    updated_at: Instant


class ScheduleList(ResponseModel):
    """Schedules in the order of their names."""

    items: list[Schedule]
    next_cursor: str | UnsetType = UNSET


class ScheduleRuns(ResponseModel):
    """The next five runs."""

    runs: list[Instant]
