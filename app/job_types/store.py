"""Runs job_types.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from asyncpg import Record

from app.db.pool import Runs
from app.db.sql import statements

SQL = statements(__file__)


class JobTypeRow(NamedTuple):
    """`config` is what was PUT, as JSON text."""

    name: str
    config: str
    created_at: datetime
    updated_at: datetime


class CachedRow(NamedTuple):
    """`config` is None if it is the one that the cache has."""

    name: str
    updated_at: datetime
    config: str | None


def _row(row: Record | None) -> JobTypeRow | None:
    return None if row is None else JobTypeRow(*row)


async def all_job_types(on: Runs, names: Sequence[str], updated_at: Sequence[datetime]) -> list[CachedRow]:
    """`names` and `updated_at` say what the caller has."""
    return [CachedRow(*row) for row in await on.rows(SQL.all_job_types, names, updated_at)]


async def get_job_type(on: Runs, name: str) -> JobTypeRow | None:
    return _row(await on.row(SQL.get_job_type, name))


async def list_job_types(on: Runs, after: str, limit: int) -> list[JobTypeRow]:
    return [JobTypeRow(*row) for row in await on.rows(SQL.list_job_types, after, limit)]


async def put_job_type(on: Runs, name: str, config: str, now: datetime) -> JobTypeRow:
    (row,) = await on.rows(SQL.put_job_type, name, config, now)
    return JobTypeRow(*row)


async def delete_job_type(on: Runs, name: str) -> JobTypeRow | None:
    return _row(await on.row(SQL.delete_job_type, name))
