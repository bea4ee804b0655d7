"""Reads and writes job types: the functions run the statements of job_types.sql."""

from datetime import datetime
from typing import NamedTuple

import msgspec
from asyncpg import Record

from app.db.pool import Executor
from app.db.queries import load_queries
from app.job_types.schemas import JobType, JobTypeConfig

SQL = load_queries(__file__)


class _Stored(JobTypeConfig, forbid_unknown_fields=False):
    """The stored configuration.

    Ignores unknown members, because a newer release may run beside this one and write them.
    """


_config = msgspec.json.Decoder(_Stored)


class JobTypeRow(NamedTuple):
    name: str
    config: str
    created_at: datetime
    updated_at: datetime

    def read_config(self) -> JobTypeConfig:
        return _config.decode(self.config)

    def to_response(self) -> JobType:
        fields = msgspec.structs.asdict(self.read_config())
        return JobType(name=self.name, created_at=self.created_at, updated_at=self.updated_at, **fields)


async def all_job_types(db: Executor) -> list[JobTypeRow]:
    return [JobTypeRow(*row) for row in await db.rows(*SQL.all_job_types())]


async def list_job_types(db: Executor, after: str, limit: int, max_bytes: int) -> tuple[list[JobTypeRow], int]:
    """Returns the first job types of a page, as many as fit into `max_bytes`, but at least one.

    Also returns the number of job types that the page would have without `max_bytes`.
    """
    rows = await db.rows(*SQL.list_job_types(after=after, limit=limit, max_bytes=max_bytes))
    return [JobTypeRow(*row[:-1]) for row in rows], rows[0]["total"] if rows else 0


async def get_job_type(db: Executor, name: str) -> JobTypeRow | None:
    return _row_or_none(await db.row(*SQL.get_job_type(name=name)))


async def put_job_type(db: Executor, name: str, config: str, now: datetime) -> JobTypeRow:
    row = await db.row(*SQL.put_job_type(name=name, config=config, now=now))
    assert row is not None
    return JobTypeRow(*row)


async def delete_job_type(db: Executor, name: str) -> JobTypeRow | None:
    return _row_or_none(await db.row(*SQL.delete_job_type(name=name)))


def _row_or_none(row: Record | None) -> JobTypeRow | None:
    return JobTypeRow(*row) if row else None
