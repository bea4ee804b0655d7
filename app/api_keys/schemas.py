"""How a key is made, and what is told about it. Its secret is told once, when it is made."""

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
        description="`enqueue`, `work`, `read` or `manage`, or `admin` for all four. A pattern limits it to queues: in `work:email.*` "
        "the `*` matches any text.",
    ),
]
Scopes = Annotated[list[ScopeText], Meta(min_length=1, max_length=50)]
RequestsPerSecond = Annotated[
    float,
    number(
        ge=0.01,
        le=1_000_000,
        description="Quota of calls, in each process; beyond it 429 `rate_limited`. A second's worth may come at once.",
    ),
]
MaxLeases = Annotated[
    int,
    integer(
        ge=1,
        le=1_000_000,
        description="Quota of leases held at once, over all processes; beyond it 429 `rate_limited`.",
    ),
]


class ApiKeyCreate(RequestModel):
    """A key to be made."""

    name: Name
    scopes: Scopes
    expires_at: Instant | UnsetType = UNSET
    requests_per_second: RequestsPerSecond | UnsetType = UNSET
    max_leases: MaxLeases | UnsetType = UNSET


class ApiKey(ResponseModel):
    """A key, without its secret. `name` says who the caller is: two keys may have the same name, so that a new one can take over."""

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
    """A key with its secret, which is told this once and stored nowhere."""

    key: str


class ApiKeyList(ResponseModel):
    """Keys, newest first, revoked ones too."""

    items: list[ApiKey]
    next_cursor: str | UnsetType = UNSET
