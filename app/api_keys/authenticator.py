"""The keys as this process knows them: every request is checked from here, and asks the database only if nobody has for a while."""

import asyncio
import hmac
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial

from app.api_keys import key_format, store
from app.api_keys.store import KeyRow
from app.db.infrastructure import Infrastructure
from app.errors import DatabaseUnavailable, RateLimited, Unauthenticated
from app.http.authorization import ANONYMOUS, Caller, caller_with
from app.settings import is_loopback

LOOK_SECONDS = 0.05
PATIENCE = 1.0  # with a database that does not answer
_NO_MAC = bytes(32)  # of a key that is not there: found out in the same time as a wrong secret


class TokenBucket:
    """A bucket that fills at the key's rate and holds a second's worth, at least one call."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._most = max(1.0, per_second)
        self._left = self._most
        self._at = time.monotonic()

    def take_token(self) -> None:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            raise RateLimited(
                f"this key may call {self.per_second:g} times a second",
                retry_after=math.ceil((1 - self._left) / self.per_second),
            )
        self._left -= 1


class CachedKey:
    """A key as the process caches it. Keys with the same name share the quotas."""

    def __init__(
        self, row: KeyRow, max_leases: int | None, budget: TokenBucket | None, ended: Callable[[], bool]
    ) -> None:
        self.id = row.id
        self.mac = row.mac
        self.expires_at = row.expires_at
        self.caller: Caller = caller_with(row.name, row.scopes, max_leases, ended)
        self.budget = budget


class ApiKeyAuthenticator:
    """Revoking makes the version of the keys grow: every process hears of it within 250 ms, or gets no answer from the database."""

    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra
        self._pepper = key_format.pepper(infra.settings.key_pepper)
        self._open = is_loopback(infra.settings.host) or infra.settings.allow_anonymous
        self._live: dict[str, CachedKey] | None = None  # until the database has been asked
        self._revoked: dict[
            str, bytes
        ] = {}  # MACs by id: only a caller with the right secret learns that its key was revoked
        self._any = True
        self._used: dict[str, datetime] = {}
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self._reading = asyncio.Lock()  # or a slow read would put back what was in force before a newer one
        infra.versions.hear("api_keys", self.refresh)

    async def refresh(self) -> None:
        async with self._reading:
            rows = await store.all_keys(self._infra.db)
            live = [row for row in rows if row.revoked_at is None]
            newest = {
                row.name: row for row in sorted(live, key=lambda row: row.created_at)
            }  # its quotas are the caller's
            budgets = self._budgets(newest.values())
            self._live = {
                row.id: CachedKey(
                    row, newest[row.name].max_leases, budgets.get(row.name), partial(self._has_ended, row.id)
                )
                for row in live
            }
            self._revoked = {row.id: row.mac for row in rows if row.revoked_at is not None}
            self._any = bool(rows)

    def _budgets(self, rows: Iterable[KeyRow]) -> dict[str, TokenBucket]:
        """What has been spent stays spent."""
        rates = {row.name: row.requests_per_second for row in rows if row.requests_per_second is not None}
        spent = {known.caller.name: known.budget for known in (self._live or {}).values() if known.budget is not None}
        return {name: _same(spent.get(name), rate) or TokenBucket(rate) for name, rate in rates.items()}

    async def admit(self, authorization: str | None) -> Caller:
        if not self._infra.versions.is_fresh():
            with suppress(
                DatabaseUnavailable, TimeoutError
            ):  # then it is by what we know: an operator can see what is wrong
                async with asyncio.timeout(PATIENCE):
                    await self._infra.versions.ensure_fresh()
        if (
            self._live is None
        ):  # the schema is older than keys: a 503 that says so, and no 401, which clients take for the last word
            await self.refresh()
        if not self._any and self._open:
            return ANONYMOUS
        known = self._check(authorization)
        if known is None:  # perhaps another process has made it just now
            await self._look_again()
            known = self._check(authorization)
        if known is None:
            raise Unauthenticated(self._refusal(authorization))
        self._used[known.id] = self._infra.now()
        if known.budget is not None:
            known.budget.take_token()
        return known.caller

    async def _look_again(self) -> None:
        """Not for every wrong key: whoever sends many of them must not keep the database busy."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                self._looked_at = time.monotonic()
                await self._infra.versions.run_once()

    def _check(self, authorization: str | None) -> CachedKey | None:
        """By the public part of the key; the secret part is compared in constant time, also when there is no such key."""
        sent = _sent(authorization)
        if sent is None:
            return None
        known = (self._live or {}).get(sent.id)
        if not self._is_secret(sent, known.mac if known else None) or known is None:
            return None
        return None if self._has_ended(known.id) else known

    def _is_secret(self, sent: key_format.Secret, mac: bytes | None) -> bool:
        return hmac.compare_digest(sent.mac(self._pepper), mac or _NO_MAC)

    def _refusal(self, authorization: str | None) -> str:
        """Why the key is refused. Only a caller with the right secret learns that its key was revoked or has expired."""
        sent = _sent(authorization)
        known = (self._live or {}).get(sent.id) if sent else None
        if sent and self._is_secret(sent, self._revoked.get(sent.id)):
            return "the key has been revoked: ask an administrator for another one"
        if sent and self._is_secret(sent, known.mac if known else None):
            return "the key has expired: ask an administrator for another one"
        return "send a valid key: `Authorization: Bearer lsk_…`"

    def _has_ended(self, key_id: str) -> bool:
        known = (self._live or {}).get(key_id)
        return known is None or (known.expires_at is not None and known.expires_at <= self._infra.now())

    async def write_last_used(self) -> None:
        """The chore."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await store.record_key_use(self._infra.db, dict(sorted(used.items())))
        except Exception:
            self._used = {**used, **self._used}
            raise


def _sent(authorization: str | None) -> key_format.Secret | None:
    scheme, _, text = (authorization or "").partition(" ")
    return key_format.parse(text.strip()) if scheme.lower() == "bearer" else None


def _same(budget: TokenBucket | None, per_second: float) -> TokenBucket | None:
    return budget if budget is not None and budget.per_second == per_second else None
