"""What every session of ours is set to. Through a transaction pooler nothing can be sent: there the role has to have it."""

from collections.abc import Iterator, Mapping, Sequence

# A plan must not depend on when it was made: what Postgres knows of a queue is out of date within seconds. With statistics from before
# the claims a heartbeat of 1000 leases scanned the table (2,126 ms; by the index 18); made while `jobs` was empty, any plan does, and
# stays cached until somebody analyzes. Plain index scans also lock in the order of the ids, and without nested loops the ids that were
# sent are hashed (put_back of 1000: 27 ms; matched by array position 80). Without sorts, where an index has the order, a claim reads not
# the whole lane by its primary key when most of it is parked (10 jobs behind 10,000 such: 450 buffers, by jobs_ready 80).
# No plan_cache_mode: Citus needs custom plans.
_PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "enable_sort": "off",
    "jit": "off",
}

# No statement_timeout: it would not end a wait for a standby, and a write must not be told as failed that may have been done.
_GUARDS = {
    "lock_timeout": "1100ms",  # longer than Postgres's deadlock_timeout of 1s: otherwise both sides of a deadlock fail, and as lock waits
    "idle_in_transaction_session_timeout": "10s",  # a broker that was stopped in the middle must not keep its locks
    "client_min_messages": "warning",  # that a commit was not replicated is told as a warning, which must come through
}

# The server notices soon that we are gone without a word, and gives our locks free. Sockets of the same machine need none.
_KEEPALIVES = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}

_NAMED = {"application_name": "longshore", "timezone": "UTC"}  # what a pooler passes on

NEEDED: Mapping[str, str] = _PLANS | _GUARDS


def missing_settings(found: Sequence[str]) -> Iterator[str]:
    """What sessions have instead of what we need, in the order of NEEDED."""
    wrong = [f"{name}={value}" for (name, value), has in zip(NEEDED.items(), found, strict=True) if has != value]
    if wrong:
        yield f"a pooler keeps us from sending what the role should be set to: {' '.join(wrong)}"


def session_parameters(*, pooled: bool) -> dict[str, str]:
    """Sent when a connection begins: a later SET would stay behind for others that the pooler lends the session to."""
    return dict(_NAMED) if pooled else {**_NAMED, **_PLANS, **_GUARDS, **_KEEPALIVES}
