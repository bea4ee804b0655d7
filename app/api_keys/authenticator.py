"""Authenticates callers with the API keys in a cache of this process.

Authenticating a request needs a query only if the cache may be older than 250 ms, or if the cache
does not contain the key of the request.
"""

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
from app.http.authorization import ANONYMOUS, Caller, make_caller
from app.settings import is_loopback

RELOAD_INTERVAL_SECONDS = 0.05
RELOAD_TIMEOUT_SECONDS = 1.0  # after this time, the cached keys are used as they are
# The MAC to compare with if the id of a key is unknown, because rejecting an unknown id must take
# as long as rejecting a wrong secret.
_NO_MAC = bytes(32)


class TokenBucket:
    """The token bucket of a caller. Each call takes one token, and `per_second` tokens are added
    each second.

    The capacity is the number of tokens that are added in one second, but at least one token.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._capacity = max(1.0, per_second)
        self._tokens = self._capacity
        self._filled_at = time.monotonic()

    def take_token(self) -> None:
        """Takes a token for one call. Raises RateLimited if there is none."""
        now = time.monotonic()
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self.per_second)
        self._filled_at = now
        if self._tokens < 1:
            raise RateLimited(
                f"this API key may make {self.per_second:g} call{'' if self.per_second == 1 else 's'} a second",
                retry_after=math.ceil((1 - self._tokens) / self.per_second),
            )
        self._tokens -= 1


class CachedKey:
    """An API key in the cache of this process. Keys with the same name share one quota of requests
    and one of leases."""

    def __init__(
        self, row: KeyRow, max_leases: int | None, bucket: TokenBucket | None, has_key_ended: Callable[[], bool]
    ) -> None:
        self.id = row.id
        self.mac = row.mac
        self.expires_at = row.expires_at
        self.caller: Caller = make_caller(row.name, row.scopes, max_leases, has_key_ended)
        self.bucket = bucket


class ApiKeyAuthenticator:
    """Authenticates every request with the cached keys.

    Each change of a key increments the config version `api_keys`. Every process then reloads its
    cache within 250 ms, unless the database does not answer.
    """

    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._pepper = key_format.pepper(infra.settings.key_pepper)
        self._allows_anonymous = is_loopback(infra.settings.host) or infra.settings.allow_anonymous
        self._live: dict[str, CachedKey] | None = None  # None until the first load
        # MACs of revoked keys, by id. They are kept to check the secret: only a caller with the
        # right secret may learn that its key was revoked.
        self._revoked: dict[str, bytes] = {}
        self._has_any_key = True
        self._used: dict[str, datetime] = {}
        self._reloaded_at = 0.0
        self._reload_lock = asyncio.Lock()
        # Without this lock, a slow read could overwrite the result of a newer read.
        self._refresh_lock = asyncio.Lock()
        infra.config_versions.subscribe("api_keys", self.refresh)

    async def refresh(self) -> None:
        """Reads all keys into the cache."""
        async with self._refresh_lock:
            rows = await store.all_keys(self._infra.db)
            live = [row for row in rows if row.revoked_at is None]
            # If several keys have the same name, the quotas of the newest key apply.
            newest = {row.name: row for row in sorted(live, key=lambda row: row.created_at)}
            buckets = self._buckets(newest.values())
            self._live = {
                row.id: CachedKey(
                    row, newest[row.name].max_leases, buckets.get(row.name), partial(self._has_key_ended, row.id)
                )
                for row in live
            }
            self._revoked = {row.id: row.mac for row in rows if row.revoked_at is not None}
            self._has_any_key = bool(rows)

    def _buckets(self, rows: Iterable[KeyRow]) -> dict[str, TokenBucket]:
        """Returns, by caller, the token buckets of the callers that have a quota of requests.

        Keeps a bucket whose rate is unchanged: reloading the keys must not refill the bucket.
        """
        rates = {row.name: row.requests_per_second for row in rows if row.requests_per_second is not None}
        keys = (self._live or {}).values()
        old_buckets = {cached.caller.name: cached.bucket for cached in keys if cached.bucket is not None}
        return {name: _reuse(old_buckets.get(name), rate) or TokenBucket(rate) for name, rate in rates.items()}

    async def authenticate(self, authorization: str | None) -> Caller:
        """Returns the caller of a request. Raises Unauthenticated if the header has no valid key,
        or RateLimited if the caller exceeds its quota.

        While the database does not answer, the cached keys stay valid, so that an operator can
        still see what is wrong.
        """
        self._infra.config_versions.record_use()
        if not self._infra.config_versions.is_fresh:
            with suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(RELOAD_TIMEOUT_SECONDS):
                    await self._infra.config_versions.ensure_fresh()
        if self._live is None:
            # The keys were never read, for example because there was no schema. If they still
            # cannot be read, this raises 503 and not 401, because clients treat 401 as permanent.
            await self.refresh()
        if not self._has_any_key and self._allows_anonymous:
            return ANONYMOUS
        cached = self._check(authorization)
        if cached is None:  # another process may have created the key a moment ago
            await self._reload()
            cached = self._check(authorization)
        if cached is None:
            raise Unauthenticated(self._rejection_detail(authorization))
        self._used[cached.id] = self._infra.now()
        if cached.bucket is not None:
            cached.bucket.take_token()
        return cached.caller

    async def _reload(self) -> None:
        """Reloads the keys, at most once in RELOAD_INTERVAL_SECONDS, because a caller that sends
        many wrong keys must not cause a query each time."""
        async with self._reload_lock:
            if time.monotonic() - self._reloaded_at >= RELOAD_INTERVAL_SECONDS:
                self._reloaded_at = time.monotonic()
                await self._infra.config_versions.check_now()

    def _check(self, authorization: str | None) -> CachedKey | None:
        """Returns the cached key that the header contains. Returns None if the id is unknown, if
        the secret is wrong, or if the key was revoked or has expired.

        Compares the secret in constant time, even if the id is unknown.
        """
        key = _parse_header(authorization)
        if key is None:
            return None
        cached = (self._live or {}).get(key.id)
        if not self._matches(key, cached.mac if cached else None) or cached is None:
            return None
        return None if self._has_key_ended(cached.id) else cached

    def _matches(self, key: key_format.ParsedKey, mac: bytes | None) -> bool:
        return hmac.compare_digest(key.mac(self._pepper), mac or _NO_MAC)

    def _rejection_detail(self, authorization: str | None) -> str:
        """Returns the reason for rejecting a key.

        Only a caller with the right secret learns that its key was revoked or has expired.
        """
        key = _parse_header(authorization)
        cached = (self._live or {}).get(key.id) if key else None
        if key and self._matches(key, self._revoked.get(key.id)):
            return "the API key has been revoked: ask an administrator for a new one"
        if key and self._matches(key, cached.mac if cached else None):
            return "the API key has expired: ask an administrator for a new one"
        return "send a valid API key: `Authorization: Bearer lsk_…`"

    def _has_key_ended(self, key_id: str) -> bool:
        """Whether the key was revoked or has expired. A parked call checks this again before it
        returns jobs."""
        cached = (self._live or {}).get(key_id)
        return cached is None or (cached.expires_at is not None and cached.expires_at <= self._infra.now())

    async def write_last_used(self) -> None:
        """Writes `last_used_at` of the keys that were used since the last run.

        A background service calls this method periodically.
        """
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await store.record_key_use(self._infra.db, dict(sorted(used.items())))
        except Exception:
            self._used = {**used, **self._used}
            raise


def _parse_header(authorization: str | None) -> key_format.ParsedKey | None:
    scheme, _, text = (authorization or "").partition(" ")
    return key_format.parse(text.strip()) if scheme.lower() == "bearer" else None


def _reuse(bucket: TokenBucket | None, per_second: float) -> TokenBucket | None:
    return bucket if bucket is not None and bucket.per_second == per_second else None
