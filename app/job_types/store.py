"""Runs job_types.sql."""

from datetime import datetime
from typing import NamedTuple

import msgspec
from asyncpg import Record

from app.db.pool import Executor
from app.db.queries import load_queries
from app.job_types.schemas import JobType, JobTypeConfig

SQL = load_queries(__file__)


class _Stored(JobTypeConfig, forbid_unknown_fields=False):
    """A newer release beside this one may have written what this one does not know."""


_config = msgspec.json.Decoder(_Stored)


class JobTypeRow(NamedTuple):
    name: str
    config: str
    created_at: datetime
    updated_at: datetime

    def read(self) -> JobTypeConfig:
        return _config.decode(self.config)

    def to_response(self) -> JobType:
        fields = msgspec.structs.asdict(self.read())
        return JobType(name=self.name, created_at=self.created_at, updated_at=self.updated_at, **fields)


async def all_job_types(on: Executor) -> list[JobTypeRow]:
    return [JobTypeRow(*row) for row in await on.rows(SQL.all_job_types)]


async def list_job_types(on: Executor, after: str, limit: int, max_bytes: int) -> tuple[list[JobTypeRow], int]:
    """The job types that fit into `max_bytes`, at least one, and the number of those within `limit`."""
    rows = await on.rows(SQL.list_job_types, after, limit, max_bytes)
    return [JobTypeRow(*row[:-1]) for row in rows], rows[0]["total"] if rows else 0


async def get_job_type(on: Executor, name: str) -> JobTypeRow | None:
    return _perhaps(await on.row(SQL.get_job_type, name))


async def put_job_type(on: Executor, name: str, config: str, now: datetime) -> JobTypeRow:
    row = await on.row(SQL.put_job_type, name, config, now)
    assert row is not None
    return JobTypeRow(*row)


async def delete_job_type(on: Executor, name: str) -> JobTypeRow | None:
    return _perhaps(await on.row(SQL.delete_job_type, name))


def _perhaps(row: Record | None) -> JobTypeRow | None:
    return JobTypeRow(*row) if row else None
