"""Configures, lists and deletes job types.

Changes run one after the other, because each change first locks the row of the config version
`policies`.
"""

import asyncio
from collections.abc import Sequence

from app.db.infrastructure import Infrastructure
from app.db.pool import retry_after_deadlock
from app.errors import Fault, NotFound, ValidationFailed, raise_for_faults
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import Raw, UnsetType, to_json_text
from app.job_types import store
from app.job_types.payload_schema import PayloadSchema
from app.job_types.schemas import JobType, JobTypeConfig
from app.job_types.store import JobTypeRow
from app.log import log
from app.settings import Settings


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
    async def put(self, name: str, config: JobTypeConfig, caller: str, faults: Sequence[Fault] = ()) -> JobType:
        """Replaces the configuration of a job type, or creates the job type.

        Raises one ValidationFailed for `faults`, which the route has found, and for the faults that
        this method finds.
        """
        schema_faults = await _schema_faults(config.payload_schema)
        raise_for_faults([*faults, _lease_fault(config.lease_seconds, self._infra.settings), *schema_faults])
        text = to_json_text(config)
        assert text is not None
        async with self._infra.db.transaction() as transaction:
            await self._infra.config_versions.bump(transaction, "policies")
            row = await store.put_job_type(transaction, name, text, self._infra.now())
        await self._infra.config_versions.announce()
        log.info("job type configured", job_type=name, caller=caller)
        return row.to_response()

    @retry_after_deadlock
    async def delete(self, name: str, caller: str) -> JobType:
        async with self._infra.db.transaction() as transaction:
            await self._infra.config_versions.bump(transaction, "policies")
            row = await store.delete_job_type(transaction, name)
            if row is None:
                raise _not_found(name)
        await self._infra.config_versions.announce()
        log.info("job type deleted", job_type=name, caller=caller)
        return row.to_response()


def _lease_fault(seconds: int | UnsetType, settings: Settings) -> Fault | None:
    if isinstance(seconds, UnsetType) or settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
        return None
    detail = f"lease_seconds must be from {settings.min_lease_seconds} to {settings.max_lease_seconds}"
    return Fault("/lease_seconds", "invalid", detail)


async def _schema_faults(schema: Raw | UnsetType) -> Sequence[Fault]:
    if isinstance(schema, Raw):
        try:
            await asyncio.to_thread(PayloadSchema, bytes(schema))
        except ValidationFailed as problem:
            return problem.faults
    return ()


def _not_found(name: str) -> NotFound:
    return NotFound(f"no job type named {name}")
