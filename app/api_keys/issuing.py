"""How keys are made and revoked."""

from datetime import datetime

import msgspec

from app.api_keys import secret, store
from app.api_keys.schemas import ApiKey, ApiKeyCreate, ApiKeyCreated, ApiKeyList
from app.api_keys.store import NewKey
from app.db.floor import Floor
from app.errors import NotFound, TooManyKeys, ValidationFailed
from app.log import log
from app.web.paging import Paging, page_of
from app.web.shapes import Instant, given

LIVE_PER_NAME = 2  # the one in use and the one that takes over


class Issuing:
    def __init__(self, floor: Floor) -> None:
        self._floor = floor

    async def create(self, wanted: ApiKeyCreate) -> ApiKeyCreated:
        now, made = self._floor.now(), secret.new()
        self._check(wanted, now)
        async with self._floor.db.transaction() as transaction:
            await self._floor.versions.grow(transaction, "api_keys")  # its lock makes two who create wait for each other
            if await store.live_keys(transaction, wanted.name, now) >= LIVE_PER_NAME:
                raise TooManyKeys(f"{wanted.name} has {LIVE_PER_NAME} live keys: revoke one first")
            row = await store.add_key(transaction, self._new(wanted, made, now))
        await self._floor.versions.tell()
        log.info("api key created", key_id=row.id, name=row.name, scopes=row.scopes)
        return ApiKeyCreated(**msgspec.structs.asdict(row.told()), key=made.text())

    def _check(self, wanted: ApiKeyCreate, now: datetime) -> None:
        expires_at = given(wanted.expires_at, None)
        if expires_at is not None and expires_at <= now:
            raise ValidationFailed.at("/expires_at", "that is in the past")

    def _new(self, wanted: ApiKeyCreate, made: secret.Secret, now: datetime) -> NewKey:
        return NewKey(
            id=made.id,
            name=wanted.name,
            mac=made.mac(secret.pepper(self._floor.settings.key_pepper)),
            scopes=list(dict.fromkeys(wanted.scopes)),
            requests_per_second=given(wanted.requests_per_second, None),
            max_leases=given(wanted.max_leases, None),
            created_at=now,
            expires_at=given(wanted.expires_at, None),
        )

    async def get(self, key_id: str) -> ApiKey:
        row = await store.get_key(self._floor.db, key_id)
        if row is None:
            raise _unknown(key_id)
        return row.told()

    async def page(self, page: Paging) -> ApiKeyList:
        rows = await store.list_keys(self._floor.db, _after(page), page.limit + 1)
        place = page_of([row.told() for row in rows], page.limit, lambda key: {"at": key.created_at.isoformat(), "id": key.id})
        return ApiKeyList(items=place[0], next_cursor=place[1])

    async def revoke(self, key_id: str) -> ApiKey:
        """In force here when this returns, elsewhere within 250 ms."""
        async with self._floor.db.transaction() as transaction:
            await self._floor.versions.grow(transaction, "api_keys")
            row = await store.revoke_key(transaction, key_id, self._floor.now())
            if row is None:
                raise _unknown(key_id)
        await self._floor.versions.tell()
        log.info("api key revoked", key_id=key_id, name=row.name)
        return row.told()


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"no API key {key_id}")


def _after(page: Paging) -> tuple[datetime, str] | None:
    if page.cursor is None:
        return None
    try:
        return msgspec.convert(page.after("at"), Instant), page.after("id")
    except msgspec.ValidationError:
        raise ValidationFailed.at("/query/cursor", "not a cursor that we gave out") from None
