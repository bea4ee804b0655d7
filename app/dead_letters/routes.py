"""HTTP routes of dead letters."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.dead_letters.schemas import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroups,
    DeadLetterList,
    GroupField,
    PurgeAnswer,
    PurgeDeadLetters,
    ReplayAnswer,
    ReplayDeadLetters,
)
from app.dead_letters.service import DeadLetterService
from app.errors import MalformedJson, NotFound, PayloadTooLarge, ValidationFailed
from app.http.bodies import NoBody, body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import PageParams
from app.http.schema_types import NameParameter, unset_if_none
from app.jobs.schemas import Job, QueryInstant

router = APIRouter(tags=["dead_letters"])

DeadLetterServiceDep = Annotated[DeadLetterService, service("dead_letters")]
_INVALID_BODY = (MalformedJson, ValidationFailed)


class DeadLetterFilterQuery(BaseModel):
    """The filters of lists and groups of dead letters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: NameParameter | None = None
    job_type: NameParameter | None = None
    reason: NameParameter | None = None
    error_type: str | None = Field(None, max_length=200)
    fingerprint: str | None = Field(None, max_length=250)
    dead_after: QueryInstant | None = None
    dead_before: QueryInstant | None = None

    def filter(self) -> DeadLetterFilter:
        return DeadLetterFilter(
            **{name: unset_if_none(getattr(self, name)) for name in DeadLetterFilterQuery.model_fields}
        )


class DeadLetterQuery(DeadLetterFilterQuery, PageParams):
    """The filters and the page of GET /dead-letters."""

    payload: bool = Field(True, description="`false` omits the payloads.")


class GroupQuery(DeadLetterFilterQuery, PageParams):
    """The filters, the grouping and the page of GET /dead-letters/groups."""

    by: str = Field(
        "queue,job_type,fingerprint", description="Comma-separated: queue, job_type, fingerprint. Default: all three."
    )

    def fields(self) -> list[GroupField]:
        try:
            return list(dict.fromkeys(GroupField(name) for name in self.by.split(",")))
        except ValueError:
            raise ValidationFailed.at(
                "/query/by", "`by` must be a comma-separated list of queue, job_type, fingerprint"
            ) from None


@router.get("/dead-letters", **operation(DeadLetterList, ValidationFailed, scopes=READ))
async def list_dead_letters(
    dead_letters: DeadLetterServiceDep, query: Annotated[DeadLetterQuery, Query()], access: AccessDep
) -> Response:
    """Lists dead letters that match the filters, latest first.

    A page ends early, with `next_cursor`, before its dead letters exceed `max_list_bytes` (see
    `/limits`).
    """
    return (await dead_letters.page(query.filter(), query, access, payload=query.payload)).response()


@router.get("/dead-letters/groups", **operation(DeadLetterGroups, ValidationFailed, scopes=READ))
async def group_dead_letters(
    dead_letters: DeadLetterServiceDep, query: Annotated[GroupQuery, Query()], access: AccessDep
) -> Response:
    """Counts dead letters by queue, job type and error fingerprint: which errors occur, how often,
    and since when.

    These groups are not the `group` of a job. The largest come first. Later pages count only the
    jobs that became dead before the first page was read, so no group is left out; a group that
    shrinks between two pages may be listed again.
    """
    return (await dead_letters.groups(query.fields(), query.filter(), query, access)).response()


@router.post(
    "/dead-letters/replay",
    **operation(ReplayAnswer, PayloadTooLarge, *_INVALID_BODY, body=ReplayDeadLetters, scopes=MANAGE),
)
async def replay_dead_letters(
    replay: Annotated[ReplayDeadLetters, body(ReplayDeadLetters)], dead_letters: DeadLetterServiceDep, access: AccessDep
) -> Response:
    """Replays dead letters, by ids or by filter: immediately or spread over time, unchanged or with
    overrides.

    Two concurrent replays of the same dead letter replay it once. `dry_run: true` only counts.
    """
    return json_response(await dead_letters.replay(replay, access))


@router.post("/dead-letters/purge", **operation(PurgeAnswer, *_INVALID_BODY, body=PurgeDeadLetters, scopes=MANAGE))
async def purge_dead_letters(
    purge: Annotated[PurgeDeadLetters, body(PurgeDeadLetters)], dead_letters: DeadLetterServiceDep, access: AccessDep
) -> Response:
    """Deletes dead letters permanently, by ids or by filter.

    Only counts them unless `dry_run` is false.
    """
    return json_response(await dead_letters.purge(purge, access))


@router.get("/dead-letters/{job_id}", **operation(DeadLetter, NotFound, scopes=READ))
async def get_dead_letter(job_id: UUID, dead_letters: DeadLetterServiceDep) -> Response:
    """Returns one dead letter."""
    return json_response(await dead_letters.get(job_id))


@router.post("/dead-letters/{job_id}/replay", **operation(Job, NotFound, scopes=MANAGE))
async def replay_dead_letter(
    job_id: UUID, dead_letters: DeadLetterServiceDep, _: NoBody, access: AccessDep
) -> Response:
    """Replays one dead letter: the job keeps its id and its attempt records.

    The counter `attempt` starts again at 0.
    """
    return json_response(await dead_letters.replay_one(job_id, access.caller))
