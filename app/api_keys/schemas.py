"""Requests and responses of API keys. The secret is returned once, when the key is created."""

from app.http.authorization import SCOPE_PATTERN, SCOPE_RULE
from app.http.schema_types import (
    UNSET,
    Annotated,
    Instant,
    Int32,
    Meta,
    Name,
    Number,
    RequestModel,
    ResponseModel,
    UnsetType,
    integer,
    number,
)

ScopeText = Annotated[
    str,
    Meta(
        pattern=SCOPE_PATTERN.replace("$", r"\Z"),
        extra={"rule": SCOPE_RULE},
        description="`enqueue`, `work`, `read` or `manage`, or `admin` for all four. "
        "A pattern limits the scope to queues: in `work:email.*` the `*` matches any text.",
    ),
]
Scopes = Annotated[list[ScopeText], Meta(min_length=1, max_length=50)]
RequestsPerSecond = Annotated[
    float,
    number(
        ge=0.01,
        le=1_000_000,
        description="Quota of calls a second in each broker process; above it, calls get 429 `rate_limited`. "
        "Bursts of one second's worth are allowed.",
    ),
]
MaxLeases = Annotated[
    int,
    integer(
        ge=1,
        le=1_000_000,
        description="Quota of leases held at the same time, across all broker processes; "
        "above it, claims get 429 `rate_limited`.",
    ),
]


class ApiKeyCreate(RequestModel):
    """An API key to create."""

    name: Name
    scopes: Scopes
    expires_at: Instant | UnsetType = UNSET
    requests_per_second: RequestsPerSecond | UnsetType = UNSET
    max_leases: MaxLeases | UnsetType = UNSET


class ApiKey(ResponseModel):
    """An API key without its secret.

    `name` identifies the caller: two keys may share a name, so that keys can be rotated.
    """

    id: str
    name: str
    scopes: list[str]
    created_at: Instant
    expires_at: Instant | UnsetType = UNSET
    last_used_at: Instant | UnsetType = UNSET
    revoked_at: Instant | UnsetType = UNSET
    requests_per_second: Number | UnsetType = UNSET
    max_leases: Int32 | UnsetType = UNSET


class ApiKeyCreated(ApiKey, kw_only=True):
    """An API key with its secret, which is returned only once and not stored."""

    key: str


class ApiKeyList(ResponseModel):
    """API keys, including revoked ones, newest first."""

    items: list[ApiKey]
    next_cursor: str | UnsetType = UNSET
