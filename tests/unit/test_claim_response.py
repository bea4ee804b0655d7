"""The response of a claim, which is written as text: the same bytes as msgspec's encoding of its schema."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from asyncpg.pgproto import pgproto
from hypothesis import given
from hypothesis import strategies as st

from app.db.lanes import created_at
from app.http.bodies import encode
from app.http.large_response import list_response
from app.http.schema_types import UNSET, Raw, raw_or_unset, unset_if_none
from app.jobs.rows import ClaimedRow
from app.jobs.schemas import Progress
from app.leases.parent_results import ParentResults
from app.leases.schemas import ClaimAnswer, ClaimedJob, ParentResult, SettleResult
from app.leases.to_response import PollResult, encode_claim

QUEUES = {256: "mail", 257: "mail", 512: 'a "queue"\\ of ümläuts\n'}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Postgres stores neither NUL nor lone surrogates, so no text of a row contains them.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)
documents = st.builds(
    json.dumps, values, ensure_ascii=st.booleans(), separators=st.sampled_from([(",", ":"), (", ", ": ")])
)
counts = st.integers(0, 2**31 - 1)
microseconds = st.integers(0, 10**15)
# An id begins with the milliseconds since 1970 in 48 bits; these are before the year 2097.
ids = st.integers(0, 4 * 10**12 << 80).map(lambda number: pgproto.UUID(number.to_bytes(16, "big")))
tags = st.lists(texts, max_size=3).map(json.dumps)
metadata = st.dictionaries(texts, values, max_size=3).map(json.dumps)
progress_reports = st.fixed_dictionaries(
    {}, optional={"percent": st.floats(0, 100), "stage": texts, "message": texts}
).map(json.dumps)
parent_lists = st.lists(
    st.builds(
        ParentResult,
        job_id=st.uuids(),
        state=st.sampled_from(["completed", "dead", "gone"]),
        result=st.just(UNSET) | documents.map(lambda text: Raw(text.encode())),
        result_omitted=st.sampled_from([UNSET, True]),
    ),
    max_size=2,
)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


rows = st.builds(
    ClaimedRow,
    lane=st.sampled_from(sorted(QUEUES)),
    id=ids,
    job_type=texts,
    payload=documents,
    attempt=counts,
    max_attempts=counts,
    deliveries=counts,
    lease_token=ids | st.uuids(),
    started_epoch=microseconds.map(lambda number: number / 1e6),
    lease_seconds=st.integers(1, 86_400) | st.floats(0.001, 86_400),
    waited_seconds=st.none(),
    priority=st.just(0),
    checkpoint=optional(documents),
    progress=optional(progress_reports),
    group_key=optional(texts),
    tags=optional(tags),
    metadata=optional(metadata),
    traceparent=optional(texts),
    tracestate=optional(texts),
    deadline_at=optional(microseconds.map(lambda number: EPOCH + timedelta(microseconds=number))),
    depends_on=st.none(),
    admission=st.none(),
    slice_number=st.just(1),
    size=st.just(0),
)
settle_results = st.builds(
    SettleResult,
    job_id=st.uuids(),
    status=st.sampled_from(["settled", "lease_lost"]),
    state=st.just(UNSET) | st.just("completed"),
    attempt=st.just(UNSET) | counts,
)


def claimed_job(row: ClaimedRow, parents: ParentResults | None) -> ClaimedJob:
    return ClaimedJob(
        id=row.id,
        queue=QUEUES[row.lane],
        job_type=row.job_type,
        payload=Raw(row.payload.encode()),
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        deliveries=row.deliveries,
        lease_token=row.lease_token,
        lease_expires_at=datetime.fromtimestamp(row.started_epoch + row.lease_seconds, UTC),
        lease_seconds=round(row.lease_seconds),
        checkpoint=raw_or_unset(row.checkpoint),
        progress=UNSET if row.progress is None else msgspec.json.decode(row.progress, type=Progress),
        group=unset_if_none(row.group_key),
        deadline_at=unset_if_none(row.deadline_at),
        parent_results=UNSET if parents is None else parents[row.id],
        tags=msgspec.json.decode(row.tags or "[]", type=list[str]),
        metadata=msgspec.json.decode(row.metadata or "{}", type=dict[str, Raw]),
        created_at=created_at(row.id),
        traceparent=unset_if_none(row.traceparent),
        tracestate=unset_if_none(row.tracestate),
    )


@given(
    st.lists(rows, max_size=3, unique_by=lambda row: row.id),
    optional(st.lists(parent_lists, min_size=3, max_size=3)),
    st.lists(settle_results, max_size=2),
    counts,
)
def test_claim_response_is_the_encoding_of_its_schema(
    claimed: list[ClaimedRow], parent_results: list[list[ParentResult]] | None, settled: list[SettleResult], delay: int
) -> None:
    parents: dict[UUID, list[ParentResult]] | None = (
        None if parent_results is None else dict(zip([row.id for row in claimed], parent_results, strict=False))
    )
    answer = ClaimAnswer(jobs=[], settled=settled, directive="run", poll_after_ms=delay, server_time=datetime.now(UTC))
    response = list_response(asyncio.run(encode_claim(PollResult(claimed, QUEUES, parents, answer))))
    jobs = [claimed_job(row, parents) for row in claimed]
    assert response.body == encode(msgspec.structs.replace(answer, jobs=jobs)) + b"\n"
