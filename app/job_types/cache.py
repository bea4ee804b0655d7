"""The cache of job types in this process: what enqueue asks."""

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


class JobType:
    """A job type as the process caches it, with what its configuration comes to."""

    def __init__(self, row: JobTypeRow) -> None:
        config = row.read()
        policy = value_or(config.retry, TypeRetry())
        self.text = row.config
        self.config = config
        self.max_attempts: int | UnsetType = value_or(config.max_attempts, policy.max_attempts)
        self.retry: RetryPolicy | UnsetType = _without_attempts(policy)

    def check(self, payload: Raw | UnsetType, at: str) -> None:
        """Raises if the payload of the job at this pointer is not what the type asks for. What was not sent is `{}`."""
        if isinstance(self.config.payload_schema, UnsetType):
            return
        checker = self._checker
        if checker is None:
            raise ValidationFailed.at(
                f"{at}/job_type", "the payload schema of this type is not one that this release takes: put it again"
            )
        checker.check(b"{}" if isinstance(payload, UnsetType) else bytes(payload), at)

    @cached_property
    def _checker(self) -> PayloadSchema | None:
        """Made when it is first needed: a process need not pay for the types of others. It was tried when it was put, but maybe by
        another release."""
        assert isinstance(self.config.payload_schema, Raw)
        try:
            return PayloadSchema(bytes(self.config.payload_schema))
        except ValidationFailed:
            return None


def _without_attempts(policy: TypeRetry) -> RetryPolicy | UnsetType:
    """As a job stores it; nothing if it says nothing."""
    bare = RetryPolicy(
        base_seconds=policy.base_seconds, factor=policy.factor, max_seconds=policy.max_seconds, jitter=policy.jitter
    )
    return UNSET if bare == RetryPolicy() else bare


class JobTypeCache:
    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra
        self._by_name: dict[str, JobType] = {}
        self._reading = asyncio.Lock()  # or a slow read would put back what was in force before a newer one
        infra.versions.hear("policies", self.refresh)

    async def refresh(self) -> None:
        """A type whose configuration is still the same stays as it is, with its compiled schema."""
        async with self._reading:
            rows = await store.all_job_types(self._infra.db)
            known = self._by_name
            self._by_name = {row.name: _same(known.get(row.name), row) or JobType(row) for row in rows}

    def find(self, name: str) -> JobType | None:
        return self._by_name.get(name)


def _same(known: JobType | None, row: JobTypeRow) -> JobType | None:
    return known if known is not None and known.text == row.config else None
