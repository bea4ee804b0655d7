"""How keys are made and revoked."""

from datetime import datetime

import msgspec

from app.api_keys import key_format, store
from app.api_keys.schemas import ApiKey, ApiKeyCreate, ApiKeyCreated
from app.api_keys.store import KeyRow, NewKey
from app.db.infrastructure import Infrastructure
from app.db.pool import retry_after_deadlock
from app.errors import NotFound, TooManyKeys, ValidationFailed
from app.http import instants
from app.http.authorization import expanded, is_admin
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import value_or
from app.log import log

LIVE_PER_NAME = 2  # the one in use and the one that takes over


class ApiKeyService:
    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra

    @retry_after_deadlock
    async def create(self, wanted: ApiKeyCreate) -> ApiKeyCreated:
        """Any key may be the first. If no administrator's key is live afterwards, only the command line can make more: the log warns."""
        now, made = self._infra.now(), key_format.generate()
        self._check(wanted, now)
        async with self._infra.db.transaction() as transaction:
            await self._infra.versions.bump(
                transaction, "api_keys"
            )  # its lock makes two who create wait for each other
            if await store.live_keys(transaction, wanted.name, now) >= LIVE_PER_NAME:
                raise TooManyKeys(f"{wanted.name} has {LIVE_PER_NAME} live keys: revoke one first")
            row = await store.add_key(transaction, self._new(wanted, made, now))
        await self._infra.versions.tell()
        log.info("api key created", key_id=row.id, name=row.name, scopes=row.scopes)
        await self._warn_without_admin(row)
        return ApiKeyCreated(**msgspec.structs.asdict(row.to_response()), key=made.text())

    def _check(self, wanted: ApiKeyCreate, now: datetime) -> None:
        expires_at = value_or(wanted.expires_at, None)
        if expires_at is not None and expires_at <= now:
            raise ValidationFailed.at("/expires_at", "expires_at must be in the future")

    def _new(self, wanted: ApiKeyCreate, made: key_format.Secret, now: datetime) -> NewKey:
        return NewKey(
            id=made.id,
            name=wanted.name,
            mac=made.mac(key_format.pepper(self._infra.settings.key_pepper)),
            scopes=list(dict.fromkeys(scope for text in wanted.scopes for scope in expanded(text))),
            requests_per_second=value_or(wanted.requests_per_second, None),
            max_leases=value_or(wanted.max_leases, None),
            created_at=now,
            expires_at=value_or(wanted.expires_at, None),
        )

    async def get(self, key_id: str) -> ApiKey:
        row = await store.get_key(self._infra.db, key_id)
        if row is None:
            raise _unknown(key_id)
        return row.to_response()

    async def page(self, page: PageParams) -> EncodedPage[ApiKey]:
        return await encode_page(
            await store.list_keys(self._infra.reads, _after(page), page.limit + 1),
            KeyRow.to_response,
            lambda key: {"at": key.created_at.isoformat(), "id": key.id},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    @retry_after_deadlock
    async def revoke(self, key_id: str) -> ApiKey:
        """This broker refuses the key when this returns, others within 250 ms. The log warns if it was the last
        administrator's."""
        async with self._infra.db.transaction() as transaction:
            await self._infra.versions.bump(transaction, "api_keys")
            row = await store.revoke_key(transaction, key_id, self._infra.now())
            if row is None:
                raise _unknown(key_id)
        await self._infra.versions.tell()
        log.info("api key revoked", key_id=key_id, name=row.name)
        await self._warn_without_admin(row)
        return row.to_response()

    async def _warn_without_admin(self, row: KeyRow) -> None:
        if not await self.has_admin():
            log.warning(
                "no live administrator key",
                key_id=row.id,
                name=row.name,
                next_step="create one with `keys create --admin`",
            )

    async def has_admin(self) -> bool:
        """Whether any live key is an administrator's."""
        now = self._infra.now()
        return any(is_admin(row.scopes) and row.is_live(now) for row in await store.all_keys(self._infra.db))


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"no API key {key_id}")


def _after(page: PageParams) -> tuple[datetime, str] | None:
    if page.cursor is None:
        return None
    try:
        return instants.read(page.after("at")), page.after("id")
    except ValueError:
        raise ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page") from None
