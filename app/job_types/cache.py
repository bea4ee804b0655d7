"""Caches the job types in this process, so that an enqueue needs no query to read them."""

import asyncio
from functools import cached_property

from app.db.infrastructure import Infrastructure
from app.errors import ValidationFailed
from app.http.schema_types import UNSET, Raw, UnsetType, value_or
from app.job_types import store
from app.job_types.payload_schema import PayloadSchema
from app.job_types.schemas import TypeRetry
from app.job_types.store import JobTypeRow
from app.queues.schemas import RetryPolicy
from app.slices import in_slices


class JobType:
    """A job type in the cache of this process, with its decoded configuration."""

    def __init__(self, row: JobTypeRow) -> None:
        config = row.read_config()
        policy = value_or(config.retry, TypeRetry())
        self.config_text = row.config
        self.config = config
        self.max_attempts: int | UnsetType = value_or(config.max_attempts, policy.max_attempts)
        self.retry: RetryPolicy | UnsetType = _retry_policy(policy)

    @property
    def has_payload_schema(self) -> bool:
        return self.config.payload_schema is not UNSET

    def check(self, payload: Raw | UnsetType, pointer: str) -> None:
        """Raises ValidationFailed if the payload does not match the schema of the type.

        `pointer` is the JSON pointer to the job in the request. An absent payload counts as `{}`.
        """
        if isinstance(self.config.payload_schema, UnsetType):
            return
        schema = self._compiled_schema
        if schema is None:
            raise ValidationFailed.at(
                f"{pointer}/job_type",
                "this release does not accept the stored payload schema of this job type: PUT the job type again",
            )
        schema.check(b"{}" if isinstance(payload, UnsetType) else bytes(payload), pointer)

    @cached_property
    def _compiled_schema(self) -> PayloadSchema | None:
        """The compiled payload schema, or None if this release rejects it.

        PUT has checked the schema, but another release may have executed the PUT. The schema is
        compiled on first use, because a process may never enqueue jobs of this type.
        """
        assert isinstance(self.config.payload_schema, Raw)
        try:
            return PayloadSchema(bytes(self.config.payload_schema))
        except ValidationFailed:
            return None


def _retry_policy(policy: TypeRetry) -> RetryPolicy | UnsetType:
    """Returns the policy without `max_attempts`, or UNSET if the policy has no other member."""
    retry = RetryPolicy(
        base_seconds=policy.base_seconds, factor=policy.factor, max_seconds=policy.max_seconds, jitter=policy.jitter
    )
    return UNSET if retry == RetryPolicy() else retry


class JobTypeCache:
    """Caches all job types. Reloads them when the config version `policies` changes."""

    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._by_name: dict[str, JobType] = {}
        # Without this lock, a slow read could overwrite the result of a newer read.
        self._refresh_lock = asyncio.Lock()
        infra.config_versions.subscribe("policies", self.refresh)

    async def refresh(self) -> None:
        """Reloads all job types.

        A job type with an unchanged configuration keeps its compiled schema.
        """
        async with self._refresh_lock:
            rows = await store.all_job_types(self._infra.db)
            cached = self._by_name
            self._by_name = {
                row.name: _reuse(cached.get(row.name), row) or JobType(row) async for row in in_slices(rows)
            }

    def find(self, name: str) -> JobType | None:
        """Returns the job type, or None if it is not configured."""
        return self._by_name.get(name)


def _reuse(cached: JobType | None, row: JobTypeRow) -> JobType | None:
    """Returns the cached job type if its configuration is unchanged, otherwise None."""
    return cached if cached is not None and cached.config_text == row.config else None
