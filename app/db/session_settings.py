"""The settings of every database session.

A transaction pooler cannot pass them on. Behind one, an operator must set them with ALTER ROLE.
"""

from collections.abc import Iterator, Mapping, Sequence

# A plan must not depend on the time at which it was made: the statistics of a queue are out of date
# within seconds. These settings leave one plan for each statement.
#
#  * enable_seqscan: with statistics from before the claims, a heartbeat of 1000 leases scanned the
#    table (2,126 ms; by the index 18 ms). While `jobs` is empty, Postgres may choose any plan, and
#    keeps it until the next ANALYZE.
#  * enable_bitmapscan: plain index scans also lock rows in the order of their ids.
#  * enable_nestloop: without nested loops the ids of a request are joined to the jobs by a hash
#    (requeueing 1000 jobs: 27 ms; finding each id by its position in the array took 80 ms).
#  * enable_sort: without sorts a claim uses the index that has its order. It does not read the
#    whole lane by its primary key when most jobs are pending (10 jobs behind 10,000 pending ones:
#    450 buffers; by jobs_ready 80).
#
# plan_cache_mode is not set, because Citus needs custom plans.
_PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "enable_sort": "off",
    "jit": "off",
}

# No statement_timeout: it does not end a wait for a standby, and a write that may have been done
# must not be reported as not done.
_LIMITS = {
    # Longer than Postgres's deadlock_timeout of 1s. Otherwise both sides of a deadlock would fail,
    # with lock timeouts.
    "lock_timeout": "1100ms",
    # A broker that was stopped in a transaction must not keep its locks.
    "idle_in_transaction_session_timeout": "10s",
    # Postgres must send warnings: it reports an unreplicated commit as one.
    "client_min_messages": "warning",
}

# With these the server soon notices that a broker vanished, and releases its locks. Unix sockets
# need no keepalives.
_KEEPALIVES = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}

_PASSED_BY_POOLERS = {"application_name": "longshore", "timezone": "UTC"}

NEEDED: Mapping[str, str] = _PLANS | _LIMITS


def missing_settings(actual: Sequence[str]) -> Iterator[str]:
    """Compares the values of a session with those of NEEDED, which has the same order. If settings
    differ, a pooler did not pass them on: yields one sentence that names them."""
    missing = [f"{name}={value}" for (name, value), found in zip(NEEDED.items(), actual, strict=True) if found != value]
    if missing:
        yield f"the pooler does not pass on session settings; set them with ALTER ROLE: {' '.join(missing)}"


def session_parameters(*, has_pooler: bool) -> dict[str, str]:
    """Returns the settings that are sent when a connection is opened. Behind a pooler these are
    only the two that poolers pass on. The broker does not use SET either, because it would stay in
    a session that the pooler lends to other clients."""
    return dict(_PASSED_BY_POOLERS) if has_pooler else {**_PASSED_BY_POOLERS, **_PLANS, **_LIMITS, **_KEEPALIVES}
