"""The values of the fields that a new job omits."""

from dataclasses import dataclass

import msgspec

from app.enqueue.schemas import JobCreate
from app.http.schema_types import UNSET, UnsetType, value_or
from app.job_types.cache import JobType
from app.job_types.schemas import JobTypeConfig
from app.queues.cache import Queue
from app.queues.schemas import RetryPolicy
from app.settings import Settings

_RETRY_FIELDS = [field.name for field in msgspec.structs.fields(RetryPolicy)]


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """Values for the fields that a job omits: from its job type, else its queue, else the settings.

    Built once for each pair of queue and job type, and shared by the jobs of the pair.
    """

    priority: int
    max_attempts: int
    lease_seconds: int | None  # None: `lease_seconds` of the claim applies, else the setting
    timeout_seconds: int | None
    retry: dict[str, float]
    retry_text: str | None

    @classmethod
    def of(cls, queue: Queue, job_type: JobType | None, settings: Settings) -> "JobDefaults":
        type_config, queue_config = job_type.config if job_type else JobTypeConfig(), queue.config
        retry = _encode_policy(queue_config.default_retry) | _encode_policy(job_type.retry if job_type else UNSET)
        attempts = job_type.max_attempts if job_type else UNSET
        return cls(
            priority=value_or(queue_config.default_priority, 0),
            max_attempts=value_or(attempts, value_or(queue_config.default_max_attempts, settings.default_max_attempts)),
            lease_seconds=value_or(type_config.lease_seconds, value_or(queue_config.default_lease_seconds, None)),
            timeout_seconds=value_or(type_config.timeout_seconds, None),
            retry=retry,
            retry_text=_json(retry),
        )

    def retry_of(self, job: JobCreate) -> str | None:
        """Returns the retry policy of the job as JSON, with defaults for the fields that it omits.

        For example, a job may set `base_seconds` and leave `max_seconds` to its queue.
        """
        return self.retry_text if job.retry is UNSET else _json(self.retry | _encode_policy(job.retry))


def _encode_policy(policy: RetryPolicy | UnsetType) -> dict[str, float]:
    return {name: getattr(policy, name) for name in _RETRY_FIELDS if getattr(policy, name, UNSET) is not UNSET}


def _json(fields: dict[str, float]) -> str | None:
    return msgspec.json.encode(fields).decode() if fields else None
