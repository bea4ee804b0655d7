"""Every knob of the broker: frozen, documented, built once in `__main__` and passed on. No other module reads the environment."""

import os
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

LONG = 2**31 - 1  # seconds, 68 years: added to any instant of this century it stays within the calendar
Seconds = Annotated[float, Field(ge=0, le=LONG)]
WholeSeconds = Annotated[int, Field(ge=1, le=LONG)]
Count = Annotated[int, Field(ge=1)]

OF_WORKERS = (
    "URL",
    "KEY",
)  # LONGSHORE_URL and LONGSHORE_KEY are read by the example workers, which may share the broker's environment


def is_loopback(host: str) -> bool:
    """Whether only this machine can call there."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def misspelt_variables() -> list[str]:
    """A sentence for each LONGSHORE_ variable of the environment that is no setting, with the nearest name that is one."""
    known = [name.upper() for name in Settings.model_fields]
    given = sorted(name.removeprefix("LONGSHORE_") for name in os.environ if name.startswith("LONGSHORE_"))
    nearest = {name: get_close_matches(name, known, n=1) for name in given if name not in {*known, *OF_WORKERS}}
    hints = {name: f": did you mean LONGSHORE_{found[0]}?" if found else "" for name, found in nearest.items()}
    return [f"LONGSHORE_{name} is not a setting{hint}" for name, hint in hints.items()]


class Settings(BaseSettings):
    """Each field is read from `LONGSHORE_<NAME>`; its description is the README's settings table (a test joins the two)."""

    model_config = SettingsConfigDict(
        env_prefix="LONGSHORE_", frozen=True, extra="forbid", populate_by_name=True, env_ignore_empty=True
    )

    # Where we listen, where the data is
    host: str = Field("127.0.0.1", description="Address to serve on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to serve on; 0 takes a free one.")
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
        description="Direct connection for LISTEN and migrations when `DATABASE_URL` leads to a pooler; default: `DATABASE_URL`.",
    )
    pool_size: int = Field(10, ge=2, le=1000, description="Database connections per broker process.")
    pool_reserved: int | None = Field(
        None,
        ge=0,
        description="Of these, connections that only settlements and heartbeats may use; default: a fifth of them.",
    )
    pool_reads: int | None = Field(
        None,
        ge=1,
        description="Connections that lists, searches and statistics may use at once; default: half of those not reserved.",
    )
    read_timeout_seconds: Annotated[float, Field(gt=0, le=DAY)] = Field(
        5.0,
        description="How long one statement of a list, a search or statistics may take before 503 with a hint to narrow the filter.",
    )
    acquire_timeout_seconds: Seconds = Field(
        5.0, description="How long a request waits for a free database connection before 503."
    )
    silent_seconds: float = Field(
        4.0,
        ge=0.5,
        description="How long the database may answer nothing at all before what runs on it is given up as `unknown`.",
    )
    require_durable: bool = Field(
        False,
        description="Refuse a Postgres that can lose what it has acknowledged (`fsync`, `full_page_writes`, `synchronous_commit`).",
    )
    statement_cache: bool = Field(
        True, description="Keep prepared statements; turn off behind PgBouncer in transaction mode."
    )
    notify: bool = Field(
        True, description="Wake other broker processes through LISTEN/NOTIFY; without it they find work by polling."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line that is written."
    )

    # Who may call
    allow_anonymous: bool = Field(
        False,
        description="Serve without API keys on other addresses than loopback, as long as no key was ever made.",
    )
    key_pepper: SecretStr | None = Field(
        None,
        description="Secret mixed into the stored hashes of API keys. The same for all processes; changing it ends all keys.",
    )

    # Limits, published at GET /limits
    max_payload_bytes: Count = Field(256 * KIB, description="Largest payload, result or checkpoint, each.")
    max_batch_jobs: Count = Field(1000, description="Most jobs in one `POST /jobs/batch`.")
    max_batch_bytes: Count = Field(
        8 * MIB, description="Largest body of batch, settle and claim calls, and largest claim answer."
    )
    max_body_bytes: Count = Field(1 * MIB, description="Largest body of any other call.")
    max_list_bytes: Count = Field(
        8 * MIB, description="Largest response of a list; a page ends before it, but has at least one item."
    )
    max_claim_jobs: int = Field(1000, ge=1, le=1000, description="Most jobs handed out by one claim.")
    max_settlements: Count = Field(1000, description="Most settlements, or heartbeat leases, in one call.")
    max_wait_seconds: int = Field(
        30, ge=0, le=60, description="Longest long poll; longer waits are clamped. At most 60."
    )
    min_lease_seconds: WholeSeconds = Field(1, description="Shortest lease.")
    max_lease_seconds: int = Field(DAY, ge=1, le=DAY, description="Longest lease.")
    max_queues: int = Field(10_000, ge=1, le=65_535, description="Most queues.")
    max_workers_per_key: Count = Field(
        10_000,
        description="Worker ids of one API key that a process lists in a day. Others are served, but are not in `GET /workers`.",
    )
    max_delay_seconds: WholeSeconds = Field(366 * DAY, description="How far ahead a job may be scheduled.")
    max_parked_polls: Count = Field(
        10_000, description="Long polls parked per process; beyond it claims answer empty with `poll_after_ms`."
    )

    # The HTTP edge: how much, and how slowly, a client may send before it is cut off
    header_seconds: Annotated[float, Field(gt=0, le=LONG)] = Field(
        5.0,
        description="How long a new connection may say nothing, a request's head may take, and a refused client is heard out.",
    )
    body_seconds: Annotated[float, Field(gt=0, le=LONG)] = Field(
        10.0,
        description="How long a body, or the taking of an answer, may take; as long again for each `body_seconds` at the pace below.",
    )
    body_bytes_per_second: Count = Field(
        64 * KIB, description="Slowest pace at which large bodies and answers may move."
    )
    keep_alive_seconds: Annotated[float, Field(gt=0, le=LONG)] = Field(
        5.0, description="How long a connection is kept between requests."
    )
    max_header_bytes: Count = Field(32 * KIB, description="Largest request line and headers, together.")
    max_headers: Count = Field(100, description="Most headers of a request.")
    max_url_bytes: Count = Field(16 * KIB, description="Longest path and query.")
    max_connections: Count = Field(
        20_000, description="Client connections per process, fewer if the limit of open files is low; beyond it 503."
    )
    max_held_bytes: Count = Field(
        24 * MIB,
        description="Bodies above 64 KiB (4 KiB while they come in) in memory at once; at least one batch. Beyond it 503.",
    )

    # What a job gets when nobody says otherwise
    default_max_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="Executions before a failing job is dead."
    )
    default_lease_seconds: WholeSeconds = Field(60, description="Lease when neither the claim nor the job names one.")
    retry_base_seconds: Seconds = Field(5.0, description="Delay before the first retry.")
    retry_factor: Annotated[float, Field(ge=1)] = Field(
        2.0, description="Each further delay is this many times longer."
    )
    retry_max_seconds: Seconds = Field(3600.0, description="Longest delay between retries.")
    retry_jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Random share by which a retry delay is stretched or shortened."
    )
    max_crashes: Count = Field(3, description="Expired leases before a job is dead as `poison`.")
    max_deliveries: Count = Field(1000, description="Hand-outs before a job is dead as `undeliverable`.")
    create_queues: bool = Field(True, description="Whether an unknown queue comes into being on first enqueue.")

    # What is kept, and for how long
    finished_seconds: WholeSeconds = Field(7 * DAY, description="How long completed and cancelled jobs are kept.")
    finished_mode: Literal["drop", "detach"] = Field(
        "drop", description="Whether old partitions of finished jobs are dropped or detached for an archive."
    )
    dead_letter_seconds: WholeSeconds = Field(90 * DAY, description="How long dead letters are kept.")
    idempotency_seconds: WholeSeconds = Field(DAY, description="How long an `Idempotency-Key` is remembered.")

    # How often things happen with no request
    sweep_seconds: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="Longest pause between looks for expired leases and due jobs."
    )
    poll_seconds: Annotated[float, Field(gt=0, le=LONG)] = Field(
        1.0, description="Pause between the fallback polls that find work when no wake-up came."
    )
    shutdown_seconds: Seconds = Field(5.0, description="How long running requests may take to finish after SIGTERM.")

    @property
    def connections_reserved(self) -> int:
        return self.pool_size // 5 if self.pool_reserved is None else self.pool_reserved

    @property
    def connections_for_reads(self) -> int:
        ordinary = max(1, self.pool_size - self.connections_reserved)
        return max(1, ordinary // 2) if self.pool_reads is None else self.pool_reads

    @field_validator("database_url", "listen_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("not a postgresql:// URL")
        return value

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        if not self.min_lease_seconds <= self.default_lease_seconds <= self.max_lease_seconds:
            raise ValueError("the default lease must lie between the shortest and the longest")
        return self
