"""The cache of job types in this process, each with the validator that its schema was compiled to."""

import asyncio
from datetime import datetime
from functools import cached_property

import msgspec

from app.db.floor import Floor
from app.job_types import store
from app.job_types.checking import PayloadCheck
from app.job_types.schemas import JobTypeConfig, JobTypeRetry
from app.job_types.store import CachedRow
from app.web.shapes import UNSET, Raw, UnsetType, given

_config = msgspec.json.Decoder(JobTypeConfig)


class JobType:
    """A job type as the process caches it."""

    def __init__(self, config: str, updated_at: datetime) -> None:
        self.config = _config.decode(config)
        self.updated_at = updated_at

    @property
    def retry(self) -> JobTypeRetry | UnsetType:
        return self.config.retry

    @property
    def max_attempts(self) -> int | None:
        within = UNSET if self.config.retry is UNSET else self.config.retry.max_attempts
        return given(self.config.max_attempts, given(within, None))

    def check(self, payload: Raw, at: str) -> None:
        """Raises ValidationFailed, with pointers, for a payload that is not as the schema says; `at` points to its job."""
        if self._payload_check is not None:
            self._payload_check(payload, f"{at}/payload")

    @cached_property
    def _payload_check(self) -> PayloadCheck | None:
        """Compiled when the first payload comes: a broker with thousands of types starts at once."""
        schema = self.config.payload_schema
        return None if schema is UNSET else PayloadCheck(schema)


class JobTypes:
    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._by_name: dict[str, JobType] = {}
        self._reading = asyncio.Lock()  # or a slow read would put back what was in force before a newer one
        floor.versions.heard.append(self.refresh)

    async def refresh(self) -> None:
        async with self._reading:
            known = self._by_name
            rows = await store.all_job_types(self._floor.db, list(known), [job_type.updated_at for job_type in known.values()])
            self._by_name = {row.name: _cached(row, known) for row in rows}

    def find(self, name: str) -> JobType | None:
        return self._by_name.get(name)


def _cached(row: CachedRow, known: dict[str, JobType]) -> JobType:
    return known[row.name] if row.config is None else JobType(row.config, row.updated_at)
