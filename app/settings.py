"""All settings of the broker. They are immutable; each command reads them once, when it starts.

No other module reads settings from the environment."""

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

KIB = 1024
MIB = 1024 * KIB
DAY = 24 * 60 * 60

MAX_QUEUE_ID = 65_535  # the lane in a job id has 24 bits, of which the queue id has 16
MAX_SECONDS = 2**31 - 1  # 68 years: any time of this century plus MAX_SECONDS is a valid date
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
IntegerSeconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
Count = Annotated[int, Field(ge=1)]

# The example workers read LONGSHORE_URL and LONGSHORE_KEY, and may share the broker's environment.
WORKER_VARIABLES = ("URL", "KEY")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def environment_hosts() -> list[str]:
    """Returns the hosts in PGHOST, which the driver uses if `DATABASE_URL` names no host."""
    return [host for host in os.environ.get("PGHOST", "").split(",") if host]


def misspelt_variables() -> list[str]:
    """Returns a warning for each LONGSHORE_ variable that is not a setting. The warning names the
    most similar setting, if there is one."""
    known = [name.upper() for name in Settings.model_fields]
    names = sorted(name.removeprefix("LONGSHORE_") for name in os.environ if name.startswith("LONGSHORE_"))
    nearest = {name: get_close_matches(name, known, n=1) for name in names if name not in {*known, *WORKER_VARIABLES}}
    hints = {name: f": did you mean LONGSHORE_{matches[0]}?" if matches else "" for name, matches in nearest.items()}
    return [f"LONGSHORE_{name} is not a setting{hint}" for name, hint in hints.items()]


class Settings(BaseSettings):
    """All settings. Each field is read from `LONGSHORE_<NAME>`.

    docs/reference/settings.md is generated from the descriptions."""

    model_config = SettingsConfigDict(
        env_prefix="LONGSHORE_", frozen=True, extra="forbid", populate_by_name=True, env_ignore_empty=True
    )

    # Listening address and database
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 chooses a free port.")
    data_dir: Path = Field(
        Path(".longshore"), description="Folder of the embedded Postgres, used when `DATABASE_URL` is not set."
    )
    database_url: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URL", "LONGSHORE_DATABASE_URL"),
        description="Postgres 15 to 18 to use instead of the embedded one.",
    )
    listen_url: SecretStr | None = Field(
        None,
        description="Direct connection for LISTEN and migrations if `DATABASE_URL` is a connection pooler; "
        "default: `DATABASE_URL`.",
    )
    pool_size: int = Field(10, ge=2, le=1000, description="Database connections per broker process.")
    pool_reserved: int | None = Field(
        None,
        ge=0,
        description="Connections of the pool reserved for settlements and heartbeats; default: a fifth of the pool.",
    )
    pool_reads: int | None = Field(
        None,
        ge=1,
        description="Connections that lists, searches and statistics may use at once; "
        "default: half of the connections that are not reserved.",
    )
    read_timeout_seconds: Annotated[float, Field(gt=0, le=DAY)] = Field(
        5.0,
        description="Timeout of one statement of a list, a search or statistics; "
        "then 503 with a hint to narrow the filter.",
    )
    acquire_timeout_seconds: Seconds = Field(
        5.0, description="Longest wait of a request for a free database connection; then 503."
    )
    silent_seconds: float = Field(
        4.0,
        ge=0.5,
        description="Longest silence of the database; then running statements fail with outcome `unknown`.",
    )
    require_durable: bool = Field(
        False,
        description="Refuse a Postgres that can lose acknowledged commits "
        "(`fsync`, `full_page_writes`, `synchronous_commit`).",
    )
    statement_cache: bool = Field(
        True, description="Keep prepared statements; turn off behind PgBouncer in transaction mode."
    )
    notify: bool = Field(
        True, description="Wake other broker processes with LISTEN/NOTIFY; without it they find jobs by polling."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity that is logged."
    )

    # Authentication
    allow_anonymous: bool = Field(
        False,
        description="Serve without API keys on addresses other than loopback, as long as no key was ever created.",
    )
    key_pepper: SecretStr | None = Field(
        None,
        description="Secret mixed into the stored hashes of API keys. It must be the same for all processes; "
        "changing it invalidates all keys.",
    )

    # Limits, published at GET /limits
    max_payload_bytes: Count = Field(256 * KIB, description="Maximum size of a payload, result or checkpoint.")
    max_batch_jobs: Count = Field(1000, description="Maximum number of jobs in one `POST /jobs/batch`.")
    max_batch_bytes: Count = Field(
        8 * MIB, description="Maximum body of batch, settle and claim requests, and maximum claim response."
    )
    max_body_bytes: Count = Field(1 * MIB, description="Maximum body of any other request.")
    max_list_bytes: Count = Field(
        8 * MIB, description="Maximum response of a list; a page ends before it, but has at least one item."
    )
    max_claim_jobs: int = Field(1000, ge=1, le=1000, description="Maximum number of jobs returned by one claim.")
    max_settlements: Count = Field(1000, description="Maximum number of settlements or heartbeat leases in one call.")
    max_wait_seconds: int = Field(
        30, ge=0, le=60, description="Longest long poll; longer waits are shortened to it. At most 60."
    )
    min_lease_seconds: IntegerSeconds = Field(1, description="Shortest lease.")
    max_lease_seconds: int = Field(DAY, ge=1, le=DAY, description="Longest lease.")
    max_queues: int = Field(10_000, ge=1, le=65_535, description="Maximum number of queues.")
    max_workers_per_key: Count = Field(
        10_000,
        description="Maximum number of worker ids of one API key that a process lists in a day. "
        "Others are served, but are not in `GET /workers`.",
    )
    max_polled_types_per_key: Count = Field(
        10_000,
        description="Maximum number of pairs of queue and job type, polled by one API key in a day, that a process "
        "records for `explain`. Other polls are served, but `explain` may report `no_worker` for their jobs.",
    )
    max_delay_seconds: IntegerSeconds = Field(366 * DAY, description="Longest time ahead that a job may be scheduled.")
    max_parked_polls: Count = Field(
        10_000,
        description="Maximum number of open polls (claim requests that claim or wait) per process; beyond it "
        "claims return no jobs and `poll_after_ms`.",
    )

    # HTTP server: limits and timeouts of client connections
    header_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = Field(
        5.0,
        description="Timeout for the first byte of a new connection, for the head of a request, "
        "and for the lingering close after an error.",
    )
    body_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = Field(
        10.0,
        description="Timeout for receiving a body or sending a response; renewed after every "
        "`body_seconds` × `body_bytes_per_second` bytes.",
    )
    body_bytes_per_second: Count = Field(
        64 * KIB, description="Lowest accepted transfer rate of large bodies and responses."
    )
    keep_alive_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = Field(
        5.0, description="Timeout of an idle connection between requests."
    )
    max_header_bytes: Count = Field(32 * KIB, description="Maximum size of request line and headers together.")
    max_headers: Count = Field(100, description="Maximum number of headers in a request.")
    max_url_bytes: Count = Field(16 * KIB, description="Maximum length of path and query.")
    max_connections: Count = Field(
        20_000,
        description="Maximum number of client connections per process, lower if the limit of open files is low; "
        "beyond it 503.",
    )
    max_held_bytes: Count = Field(
        24 * MIB,
        description="Maximum memory for request bodies of more than 64 KiB, and for incomplete ones of more "
        "than 4 KiB; at least `max_batch_bytes`. Beyond it 503.",
    )
    max_unread_bytes: Count = Field(
        128 * MIB,
        description="Maximum memory for responses that clients have not read yet; at least `max_list_bytes` and "
        "`max_batch_bytes`. Beyond it the connections that have read nothing for the longest time are reset.",
    )

    # Defaults of jobs
    default_max_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="Attempts before a failing job becomes a dead letter."
    )
    default_lease_seconds: IntegerSeconds = Field(60, description="Lease if neither the claim nor the job sets one.")
    retry_base_seconds: Seconds = Field(5.0, description="Delay before the first retry.")
    retry_factor: Annotated[float, Field(ge=1)] = Field(
        2.0, description="Factor by which each further retry delay grows."
    )
    retry_max_seconds: Seconds = Field(3600.0, description="Longest delay between retries.")
    retry_jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Random fraction by which a retry delay is lengthened or shortened."
    )
    max_crashes: Count = Field(3, description="Expired leases before a job becomes a dead letter as `poison`.")
    max_deliveries: Count = Field(1000, description="Deliveries before a job becomes a dead letter as `undeliverable`.")
    queue_ids: str | None = Field(
        None,
        description="Ids for new queues, as `first-last` within 1-65535. Installations with different ranges never "
        "have jobs with the same id, and a job's id tells its installation. `migrate` stores the range in the "
        "database; default: the stored one, at first 1-65535.",
    )
    create_queues: bool = Field(True, description="Whether the first enqueue creates an unknown queue.")

    # Retention
    finished_seconds: IntegerSeconds = Field(7 * DAY, description="Retention of completed and cancelled jobs.")
    finished_mode: Literal["drop", "detach"] = Field(
        "drop", description="Whether old partitions of finished jobs are dropped or detached for an archive."
    )
    dead_letter_seconds: IntegerSeconds = Field(90 * DAY, description="Retention of dead letters.")
    idempotency_seconds: IntegerSeconds = Field(DAY, description="Retention of `Idempotency-Key`s.")

    # Background services
    sweep_seconds: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="Longest interval between scans for expired leases and due jobs."
    )
    poll_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = Field(
        1.0, description="Interval of the fallback polls that find jobs when a wake-up was lost."
    )
    shutdown_seconds: Seconds = Field(5.0, description="Time that running requests have to finish after SIGTERM.")

    @property
    def connections_reserved(self) -> int:
        return self.pool_size // 5 if self.pool_reserved is None else self.pool_reserved

    @property
    def read_connections(self) -> int:
        ordinary = max(1, self.pool_size - self.connections_reserved)
        return max(1, ordinary // 2) if self.pool_reads is None else self.pool_reads

    @property
    def queue_id_range(self) -> tuple[int, int] | None:
        if self.queue_ids is None:
            return None
        first, last = map(int, self.queue_ids.split("-"))
        return first, last

    @field_validator("queue_ids")
    @classmethod
    def _is_queue_id_range(cls, value: str | None) -> str | None:
        if value is not None:
            found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", value)
            if not found or not 1 <= int(found[1]) <= int(found[2]) <= MAX_QUEUE_ID:
                raise ValueError(f"must be first-last within 1-{MAX_QUEUE_ID}, for example 1-999, not {value}")
        return value

    @field_validator("database_url", "listen_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("not a postgresql:// URL")
        return value

    @model_validator(mode="after")
    def _check_lease_order(self) -> "Settings":
        if not self.min_lease_seconds <= self.default_lease_seconds <= self.max_lease_seconds:
            raise ValueError(
                "LONGSHORE_DEFAULT_LEASE_SECONDS must be between LONGSHORE_MIN_LEASE_SECONDS "
                "and LONGSHORE_MAX_LEASE_SECONDS"
            )
        return self
