"""What operators ask of dead letters."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.dead_letters.reviving import Reviving
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
from app.errors import MalformedJson, NotFound, PayloadTooLarge, ValidationFailed
from app.jobs.schemas import Job, QueryInstant
from app.web.auth import Reach
from app.web.bodies import NoBody, answer, body
from app.web.contract import MANAGE, READ, gives
from app.web.paging import Paging
from app.web.rooms import of
from app.web.shapes import NameParameter, or_unset

router = APIRouter(tags=["dead_letters"])

RevivingRoom = Annotated[Reviving, of(Reviving)]
_BAD = (MalformedJson, ValidationFailed)


class LetterFilter(BaseModel):
    """The filters of lists and groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: NameParameter | None = None
    job_type: NameParameter | None = None
    reason: NameParameter | None = None
    error_type: str | None = Field(None, max_length=200)
    fingerprint: str | None = Field(None, max_length=250)
    dead_after: QueryInstant | None = None
    dead_before: QueryInstant | None = None

    def filter(self) -> DeadLetterFilter:
        return DeadLetterFilter(**{name: or_unset(getattr(self, name)) for name in LetterFilter.model_fields})


class LetterQuery(LetterFilter, Paging):
    """The filters and the page of GET /dead-letters."""

    payload: bool = Field(True, description="`false` leaves the payloads out.")


class GroupQuery(LetterFilter):
    """The filters and the grouping of GET /dead-letters/groups."""

    by: str = Field("queue,job_type,fingerprint", description="Comma-separated: queue, job_type, fingerprint. Default: all three.")

    def fields(self) -> list[GroupField]:
        try:
            return list(dict.fromkeys(GroupField(name) for name in self.by.split(",")))
        except ValueError:
            raise ValidationFailed.at("/query/by", "by must be a comma-separated list of queue, job_type, fingerprint") from None


@router.get("/dead-letters", **gives(DeadLetterList, ValidationFailed, to=READ))
async def list_dead_letters(reviving: RevivingRoom, query: Annotated[LetterQuery, Query()], reach: Reach) -> Response:
    """Dead letters, latest first, filtered and page by page.

    A page ends early, with `next_cursor`, before its dead letters exceed `max_list_bytes` (see `/limits`).
    """
    return (await reviving.page(query.filter(), query, reach, payload=query.payload)).response()


@router.get("/dead-letters/groups", **gives(DeadLetterGroups, ValidationFailed, to=READ))
async def group_dead_letters(reviving: RevivingRoom, query: Annotated[GroupQuery, Query()], reach: Reach) -> Response:
    """What fails, how often and since when: dead letters grouped by queue, job type and fingerprint of the error."""
    return answer(DeadLetterGroups(items=await reviving.groups(query.fields(), query.filter(), reach)))


@router.post("/dead-letters/replay", **gives(ReplayAnswer, PayloadTooLarge, *_BAD, takes=ReplayDeadLetters, to=MANAGE))
async def replay_dead_letters(
    replay: Annotated[ReplayDeadLetters, body(ReplayDeadLetters)], reviving: RevivingRoom, reach: Reach
) -> Response:
    """Makes dead jobs live again, by ids or by filter: at once or spread over time, as they were or with overrides.

    Replaying twice at once replays once. `dry_run: true` only counts.
    """
    return answer(await reviving.replay(replay, reach))


@router.post("/dead-letters/purge", **gives(PurgeAnswer, *_BAD, takes=PurgeDeadLetters, to=MANAGE))
async def purge_dead_letters(purge: Annotated[PurgeDeadLetters, body(PurgeDeadLetters)], reviving: RevivingRoom, reach: Reach) -> Response:
    """Removes dead letters for good, by ids or by filter. It only counts unless `dry_run` is false."""
    return answer(await reviving.purge(purge, reach))


@router.get("/dead-letters/{job_id}", **gives(DeadLetter, NotFound, to=READ))
async def get_dead_letter(job_id: UUID, reviving: RevivingRoom) -> Response:
    """One dead letter."""
    return answer(await reviving.get(job_id))


@router.post("/dead-letters/{job_id}/replay", **gives(Job, NotFound, to=MANAGE))
async def replay_dead_letter(job_id: UUID, reviving: RevivingRoom, _: NoBody) -> Response:
    """Makes one dead job live again: it keeps its id and its history, its attempts start at 0."""
    return answer(await reviving.replay_one(job_id))
