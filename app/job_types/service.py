"""Configures, lists and deletes job types.

Changes run one after the other: each locks the row of the config version `policies` first.
"""

import asyncio

from app.db.infrastructure import Infrastructure
from app.db.pool import retry_after_deadlock
from app.errors import NotFound, ValidationFailed
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import Raw, to_json_text
from app.job_types import store
from app.job_types.payload_schema import PayloadSchema
from app.job_types.schemas import JobType, JobTypeConfig
from app.job_types.store import JobTypeRow


class JobTypeService:
    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra

    async def page(self, page: PageParams) -> EncodedPage[JobType]:
        max_bytes = self._infra.settings.max_list_bytes
        rows, total = await store.list_job_types(
            self._infra.read_connections, page.after("name"), page.limit + 1, max_bytes
        )
        return await encode_page(
            rows,
            JobTypeRow.to_response,
            lambda job_type: {"name": job_type.name},
            limit=page.limit,
            max_bytes=max_bytes,
            total=total,
        )

    async def get(self, name: str) -> JobType:
        row = await store.get_job_type(self._infra.db, name)
        if row is None:
            raise _not_found(name)
        return row.to_response()

    @retry_after_deadlock
    async def put(self, name: str, config: JobTypeConfig) -> JobType:
        self._check_lease(config)
        if isinstance(config.payload_schema, Raw):
            await asyncio.to_thread(PayloadSchema, bytes(config.payload_schema))
        text = to_json_text(config)
        assert text is not None
        async with self._infra.db.transaction() as transaction:
            await self._infra.config_versions.bump(transaction, "policies")
            row = await store.put_job_type(transaction, name, text, self._infra.now())
        await self._infra.config_versions.announce()
        return row.to_response()

    @retry_after_deadlock
    async def delete(self, name: str) -> JobType:
        async with self._infra.db.transaction() as transaction:
            await self._infra.config_versions.bump(transaction, "policies")
            row = await store.delete_job_type(transaction, name)
            if row is None:
                raise _not_found(name)
        await self._infra.config_versions.announce()
        return row.to_response()

    def _check_lease(self, config: JobTypeConfig) -> None:
        settings, seconds = self._infra.settings, config.lease_seconds
        if isinstance(seconds, int) and not settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
            detail = f"lease_seconds must be from {settings.min_lease_seconds} to {settings.max_lease_seconds}"
            raise ValidationFailed.at("/lease_seconds", detail)


def _not_found(name: str) -> NotFound:
    return NotFound(f"no job type named {name}")
