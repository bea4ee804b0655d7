"""The product's hot statements as pgbench scripts: what its store functions send, with the values in the text."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from asyncpg import Record

from app.db.queries import Query
from app.jobs import store as jobs
from app.jobs.rows import NewJob
from app.leases import store as leases
from app.leases.rows import LanePolicy
from bench.cost import LANE, PAYLOAD, claim_params

# What a hand-written producer would send: the row and its ready span, and nothing else.
INSERT = f"""
WITH added AS (
    INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
    VALUES ({LANE}, uuidv7(), 'ready', now(), 0, 5, 'bench', :payload)
    RETURNING id
)
INSERT INTO ready_spans (lane, priority, first_id, last_id) SELECT {LANE}, 0, id, id FROM added;
"""
FILL = f"""
WITH added AS (
    INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
    SELECT {LANE}, uuidv7(), 'ready', now(), 0, 5, 'bench', $2 FROM generate_series(1, $1::int)
    RETURNING id
)
INSERT INTO ready_spans (lane, priority, first_id, last_id)
SELECT {LANE}, 0, (array_agg(id ORDER BY id))[1], (array_agg(id ORDER BY id DESC))[1]
FROM (SELECT id, row_number() OVER (ORDER BY id) / 1000 AS part FROM added) AS numbered
GROUP BY part
"""

NO_OPTIONS = {
    "reason",
    "group_key",
    "lease_seconds",
    "retry",
    "tags",
    "metadata",
    "traceparent",
    "tracestate",
    "replayed_from",
}

_COMMENT = re.compile(r"--.*$|/\*.*?\*/", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)(?:::(\w+)(\[\])?)?")


class RecordingExecutor:
    """An executor that records the statement instead of running it."""

    sql = ""
    args: tuple[object, ...] = ()

    async def rows(self, sql: str, *args: object) -> list[Record]:
        self.sql, self.args = sql, args
        return []

    async def row(self, sql: str, *args: object) -> Record | None:
        raise NotImplementedError

    async def value(self, sql: str, *args: object) -> Any:
        raise NotImplementedError


async def enqueue(batch: int) -> str:
    """The database generates the ids, because pgbench cannot; all other columns are constants of the plan."""
    sent, now = RecordingExecutor(), datetime.now(UTC)
    await jobs.enqueue(sent, LANE, [_job(n, now) for n in range(batch)])
    ids = f"SELECT array_agg(uuidv7()) AS ids FROM generate_series(1, {batch}) \\gset"
    insert = _with_literals(
        sent,
        _numbered(
            jobs.SQL.enqueue,
            id=":ids::uuid[]",
            first_ids="ARRAY[(:ids::uuid[])[1]]",
            last_ids=f"ARRAY[(:ids::uuid[])[{batch}]]",
        ),
    )
    return f"{ids}\n{insert};\n"


async def claim_and_complete(batch: int) -> str:
    """The claim returns only ids and tokens, as arrays: pgbench could not hold more."""
    claim, complete = RecordingExecutor(), RecordingExecutor()
    now = datetime.now(UTC)
    await leases.claim(claim, LANE, batch, claim_params(), LanePolicy(), now)
    await leases.complete(
        complete,
        LANE,
        ids=[UUID(int=0)] * batch,
        tokens=[UUID(int=1)] * batch,
        results=[None] * batch,
        now=now,
        keep_until=now + timedelta(days=7),
        archive=False,
    )
    secrets = _numbered(
        leases.SQL.claim, secret="gen_random_uuid()::text", claims="ARRAY[left(md5(gen_random_uuid()::text), 16)]"
    )
    claim_sql = _aggregate_tokens(_with_literals(claim, secrets))
    complete_sql = _with_literals(
        complete, _numbered(leases.SQL.complete, ids=":ids::uuid[]", tokens=":tokens::uuid[]")
    )
    return f"{claim_sql} \\gset\n{complete_sql};\n"


def _job(n: int, now: datetime) -> NewJob:
    fields = {
        "state": "ready",
        "run_at": now,
        "priority": 0,
        "max_attempts": 5,
        "job_type": "bench",
        "payload": PAYLOAD,
    }
    return NewJob(id=UUID(int=n), **dict.fromkeys(NO_OPTIONS), **fields)  # type: ignore[arg-type]


def _aggregate_tokens(claim: str) -> str:
    _, source, call = claim.partition("FROM claim_jobs(")
    assert call, "the claim no longer calls claim_jobs"
    return f"SELECT array_agg(id ORDER BY id) AS ids, array_agg(lease_token ORDER BY id) AS tokens {source}{call}"


def _numbered(query: Query, **replacements: str) -> dict[int, str]:
    """Returns replacements for parameters, by their numbers."""
    return {query.parameters.index(name) + 1: text for name, text in replacements.items()}


def _with_literals(sent: RecordingExecutor, replacements: dict[int, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        n, kind, is_array = int(match[1]), match[2], match[3]
        if n in replacements:
            return replacements[n]
        return _literal(sent.args[n - 1], kind, bool(is_array))

    return _PARAMETER.sub(replace, _COMMENT.sub("", sent.sql).strip())


def _literal(value: object, kind: str | None, is_array: bool) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _array(value, kind or "text")
    cast = f"::{kind}{'[]' if is_array else ''}" if kind else ""
    return f"{_plain(value)}{cast}"


def _array(values: Sequence[object], kind: str) -> str:
    if not values:
        return f"ARRAY[]::{kind}[]"
    return f"array_fill({_plain(values[0])}::{kind}, ARRAY[{len(values)}])"


def _plain(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | float):
        return f"({str(value).lower()})"
    if isinstance(value, datetime):  # in a text, pgbench would take its colons for variables
        return f"to_timestamp({value.timestamp()})"
    return "'" + str(value).replace("'", "''") + "'"
