"""Reads and writes API keys: the functions run the statements of api_keys.sql."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from asyncpg import Record

from app.api_keys.schemas import ApiKey
from app.db.pool import Executor
from app.db.queries import load_queries
from app.http.schema_types import unset_if_none

SQL = load_queries(__file__)


class KeyRow(NamedTuple):
    """A row of `api_keys`. The secret is not stored, only `mac`, an HMAC of the secret."""

    id: str
    name: str
    mac: bytes
    scopes: Sequence[str]
    requests_per_second: float | None
    max_leases: int | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def is_live(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def to_response(self) -> ApiKey:
        return ApiKey(
            id=self.id,
            name=self.name,
            scopes=list(self.scopes),
            created_at=self.created_at,
            expires_at=unset_if_none(self.expires_at),
            last_used_at=unset_if_none(self.last_used_at),
            revoked_at=unset_if_none(self.revoked_at),
            requests_per_second=unset_if_none(self.requests_per_second),
            max_leases=unset_if_none(self.max_leases),
        )


class NewKey(NamedTuple):
    id: str
    name: str
    mac: bytes
    scopes: Sequence[str]
    requests_per_second: float | None
    max_leases: int | None
    created_at: datetime
    expires_at: datetime | None


async def all_keys(db: Executor) -> list[KeyRow]:
    return [KeyRow(*row) for row in await db.rows(*SQL.all_keys())]


async def list_keys(db: Executor, after: tuple[datetime, str] | None, limit: int) -> list[KeyRow]:
    created_at, key_id = after or (None, None)
    rows = await db.rows(*SQL.list_keys(after_created_at=created_at, after_id=key_id, limit=limit))
    return [KeyRow(*row) for row in rows]


async def get_key(db: Executor, key_id: str) -> KeyRow | None:
    return _row_or_none(await db.row(*SQL.get_key(id=key_id)))


async def count_live_keys(db: Executor, name: str, now: datetime) -> int:
    count: int = await db.value(*SQL.count_live_keys(name=name, now=now))
    return count


async def add_key(db: Executor, key: NewKey) -> KeyRow:
    (row,) = await db.rows(*SQL.add_key(**key._asdict()))
    return KeyRow(*row)


async def revoke_key(db: Executor, key_id: str, now: datetime) -> KeyRow | None:
    return _row_or_none(await db.row(*SQL.revoke_key(id=key_id, now=now)))


async def record_key_use(db: Executor, used_at: Mapping[str, datetime]) -> None:
    await db.rows(*SQL.record_key_use(ids=list(used_at), used_at=list(used_at.values())))


def _row_or_none(row: Record | None) -> KeyRow | None:
    return KeyRow(*row) if row else None
