"""Requests and responses of schedules."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import ClassVar
from zoneinfo import ZoneInfo

from app.enqueue.schemas import JobCreate
from app.errors import Fault
from app.http import instants
from app.http.member_rules import ExactlyOne, MemberRule, ValueOf, member_of
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
)
from app.schedules.cron import Cron, CronError, zone_named

MAX_CRON_LENGTH = 200
UNKNOWN_TIME_ZONE = "timezone must be the IANA name of a time zone, such as Europe/Berlin"
CronText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_CRON_LENGTH,
        description="Five fields (minute, hour, day, month, weekday), or @hourly, @daily, @weekly, @monthly, @yearly. "
        "When daylight saving time changes, fixed hours fire once, and hourly schedules keep their interval.",
    ),
]
EverySeconds = Annotated[
    int,
    integer(
        ge=1,
        le=366 * 24 * 60 * 60,
        description="Interval, counted from starts_at, or else from the schedule's creation.",
    ),
]
TimeZone = Annotated[
    str, Meta(min_length=1, max_length=100, description="IANA name such as Europe/Berlin. Default UTC.")
]


class Misfire(StrEnum):
    """How the broker handles runs of a schedule that are more than 60 seconds late.

    `skip`: enqueues no job for them. `once`: enqueues one job for all of them; if the next run is
    due by then, the job stands for that run, too. `all`: enqueues one job for each.
    """

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """Whether a run enqueues a job while the previous job has not finished: `allow` or `skip`."""

    ALLOW = "allow"
    SKIP = "skip"


class ValidTimes(MemberRule):
    """The time zone must exist, and `cron` must be an expression that fires."""

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        name, cron = value_of("timezone"), value_of("cron")
        zone = zone_named(name) if isinstance(name, str) and name else None
        if isinstance(name, str) and name and zone is None:
            yield Fault(f"{pointer}/timezone", "invalid", UNKNOWN_TIME_ZONE)
        try:
            if isinstance(cron, str) and 0 < len(cron) <= MAX_CRON_LENGTH:
                Cron(cron, zone or ZoneInfo("UTC"))
        except CronError as error:
            yield Fault(f"{pointer}/cron", "invalid", f"{error}")


class SchedulePreview(RequestModel):
    """The times of a schedule. Send either cron or every_seconds."""

    rules: ClassVar[Sequence[MemberRule]] = (ExactlyOne("cron", "every_seconds"), ValidTimes())

    cron: CronText | UnsetType = UNSET
    every_seconds: EverySeconds | UnsetType = UNSET
    timezone: TimeZone | UnsetType = UNSET


# Members that apply to a single job at a single time. In a schedule they would be wrong from the
# second run on.
SINGLE_JOB_MEMBERS = ("run_at", "delay_seconds", "expires_at", "depends_on", "on_parent_failure")


class RepeatableJob(MemberRule):
    """The job of a schedule must not have members that only apply to one job at one time."""

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        for name in SINGLE_JOB_MEMBERS:
            if member_of(value_of("job"), name) is not UNSET:
                yield Fault(f"{pointer}/job/{name}", "invalid", f"{name} is not allowed in a schedule's job")


class EndsAfterStart(MemberRule):
    """`ends_at` must be after `starts_at`."""

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        starts_at, ends_at = instants.parse_or_none(value_of("starts_at")), instants.parse_or_none(value_of("ends_at"))
        if starts_at is not None and ends_at is not None and ends_at <= starts_at:
            yield Fault(f"{pointer}/ends_at", "invalid", "ends_at must be after starts_at")


class SchedulePut(SchedulePreview, kw_only=True):
    """The times and the job of a schedule. Send either cron or every_seconds."""

    rules: ClassVar[Sequence[MemberRule]] = (*SchedulePreview.rules, RepeatableJob(), EndsAfterStart())

    job: Annotated[
        JobCreate,
        Meta(
            description="The job that each run enqueues. run_at, delay_seconds, expires_at and depends_on "
            "are not allowed, because they apply to a single job."
        ),
    ]
    misfire: (
        Annotated[Misfire, Meta(description="For runs that are more than 60 seconds late. Default skip.")] | UnsetType
    ) = UNSET
    overlap: Annotated[Overlap, Meta(description="Default allow.")] | UnsetType = UNSET
    paused: Annotated[bool, Meta(description="Default: unchanged; false for a new schedule.")] | UnsetType = UNSET
    starts_at: Annotated[Instant, Meta(description="No run before this time.")] | UnsetType = UNSET
    ends_at: Annotated[Instant, Meta(description="No run at or after this time.")] | UnsetType = UNSET


class Schedule(ResponseModel, kw_only=True):
    """A schedule. `next_run_at` is absent while the schedule is paused, and when no run is left."""

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
    """Schedules, sorted by name."""

    items: list[Schedule]
    next_cursor: str | UnsetType = UNSET


class ScheduleRuns(ResponseModel):
    """The next five runs of a schedule."""

    runs: list[Instant]
