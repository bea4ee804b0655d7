"""Creates, lists and revokes API keys."""

from datetime import datetime

import msgspec

from app.api_keys import key_format, store
from app.api_keys.schemas import ApiKey, ApiKeyCreate, ApiKeyCreated
from app.api_keys.store import KeyRow, NewKey
from app.db.infrastructure import Infrastructure
from app.db.pool import retry_after_deadlock
from app.errors import NotFound, TooManyKeys, ValidationFailed
from app.http import instants
from app.http.authorization import expand_scopes, is_admin
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import value_or
from app.log import log

MAX_LIVE_KEYS_PER_NAME = 2  # the key in use and its successor


class ApiKeyService:
    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra

    @retry_after_deadlock
    async def create(self, request: ApiKeyCreate, caller: str) -> ApiKeyCreated:
        """Creates a key. Even the first key need not be an administrator key.

        Logs a warning if no administrator key is live afterwards, because then only the command
        line can create further keys.
        """
        now, key = self._infra.now(), key_format.generate()
        self._check_expiry(request, now)
        async with self._infra.db.transaction() as transaction:
            # Locks the row of the config version, which serializes concurrent creations.
            await self._infra.config_versions.bump(transaction, "api_keys")
            if await store.count_live_keys(transaction, request.name, now) >= MAX_LIVE_KEYS_PER_NAME:
                raise TooManyKeys(f"{request.name} has {MAX_LIVE_KEYS_PER_NAME} live keys: revoke one first")
            row = await store.add_key(transaction, self._new_key(request, key, now))
        await self._infra.config_versions.announce()
        log.info("api key created", key_id=row.id, name=row.name, scopes=row.scopes, caller=caller)
        await self._warn_without_admin(row)
        return ApiKeyCreated(**msgspec.structs.asdict(row.to_response()), key=key.text())

    def _check_expiry(self, request: ApiKeyCreate, now: datetime) -> None:
        expires_at = value_or(request.expires_at, None)
        if expires_at is not None and expires_at <= now:
            raise ValidationFailed.at("/expires_at", "expires_at must be in the future")

    def _new_key(self, request: ApiKeyCreate, key: key_format.ParsedKey, now: datetime) -> NewKey:
        return NewKey(
            id=key.id,
            name=request.name,
            mac=key.mac(key_format.pepper(self._infra.settings.key_pepper)),
            scopes=list(dict.fromkeys(scope for text in request.scopes for scope in expand_scopes(text))),
            requests_per_second=value_or(request.requests_per_second, None),
            max_leases=value_or(request.max_leases, None),
            created_at=now,
            expires_at=value_or(request.expires_at, None),
        )

    async def get(self, key_id: str) -> ApiKey:
        row = await store.get_key(self._infra.db, key_id)
        if row is None:
            raise _not_found(key_id)
        return row.to_response()

    async def page(self, page: PageParams) -> EncodedPage[ApiKey]:
        return await encode_page(
            await store.list_keys(self._infra.read_connections, _after(page), page.limit + 1),
            KeyRow.to_response,
            lambda key: {"at": key.created_at.isoformat(), "id": key.id},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    @retry_after_deadlock
    async def revoke(self, key_id: str, caller: str) -> ApiKey:
        """Revokes a key. This broker rejects the key when the call returns, other brokers within
        250 ms.

        Logs a warning if no administrator key is live afterwards.
        """
        now = self._infra.now()
        async with self._infra.db.transaction() as transaction:
            await self._infra.config_versions.bump(transaction, "api_keys")
            row = await store.revoke_key(transaction, key_id, now)
            if row is None:
                raise _not_found(key_id)
        await self._infra.config_versions.announce()
        if row.revoked_at == now:  # otherwise an earlier call has revoked it
            log.info("api key revoked", key_id=key_id, name=row.name, caller=caller)
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
        """Whether an administrator key is live: neither revoked nor expired."""
        now = self._infra.now()
        return any(is_admin(row.scopes) and row.is_live(now) for row in await store.all_keys(self._infra.db))


def _not_found(key_id: str) -> NotFound:
    return NotFound(f"no API key {key_id}")


def _after(page: PageParams) -> tuple[datetime, str] | None:
    if page.cursor is None:
        return None
    try:
        return instants.parse(page.after("at")), page.after("id")
    except ValueError:
        raise ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page") from None
