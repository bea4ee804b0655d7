"""Settings of every database session of the broker.

A pooler in transaction mode does not pass them on to Postgres. Behind such a pooler, an operator
must set them with ALTER ROLE.
"""

from collections.abc import Iterator, Mapping, Sequence

# The plan of a statement must not depend on when it was made, because Postgres's statistics of a
# queue are out of date within seconds. These settings leave one plan for each statement.
#
#  * enable_seqscan: with statistics from before the claims, Postgres scanned the whole table for a
#    heartbeat of 1000 leases (2,126 ms; by the index 18 ms). While `jobs` is empty, Postgres may
#    choose any plan, and keeps it until the next ANALYZE.
#  * enable_bitmapscan: without bitmap scans Postgres uses index scans, which lock rows in the order
#    of their ids.
#  * enable_nestloop: without nested loops Postgres joins the ids of a request to the jobs by a hash
#    (requeueing 1000 jobs: 27 ms; finding each id by its position in the array took 80 ms).
#  * enable_sort: without sorts a statement uses the index that has its order. With sorts a claim
#    read the whole lane by the primary key when most jobs were pending (10 jobs behind 10,000
#    pending ones: 450 buffers; by the index of that time 80).
#
# plan_cache_mode is not set, because Citus needs custom plans.
_PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "enable_sort": "off",
    "jit": "off",
}

# There is no statement_timeout, because such a timeout does not end a commit's wait for a standby,
# and because a write that may have been done must not be reported as not done.
_LIMITS = {
    # Longer than Postgres's deadlock_timeout of 1s. Otherwise both transactions of a deadlock would
    # fail, with lock timeouts.
    "lock_timeout": "1100ms",
    # If a broker is suspended in a transaction, Postgres ends the session and releases its locks.
    "idle_in_transaction_session_timeout": "10s",
    # Postgres must send warnings, because it reports an unreplicated commit only by a warning.
    "client_min_messages": "warning",
}

# With these settings the server soon notices that a broker has vanished, and releases its locks.
# Unix sockets need no keepalives.
_KEEPALIVES = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}

# On Citus, every statement that reads pg_class or pg_type checks for each of its rows whether that
# row belongs to a shard. The driver reads both catalogues before the first statement with a new
# type, which took 6 s on a coordinator and 40 s on a worker with 32 shards, and 0.1 s without the
# check. Postgres without Citus accepts any setting whose name contains a period.
_CITUS = {"citus.override_table_visibility": "off"}

# Poolers pass these settings on. Citus sends constants to its nodes as text in the style of the
# session, and the nodes read them in their own style: with another DateStyle, day and month would
# be swapped; without standard_conforming_strings, a backslash would be lost.
_PASSED_BY_POOLERS = {
    "application_name": "longshore",
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "standard_conforming_strings": "on",
}

NEEDED: Mapping[str, str] = _PLANS | _LIMITS

# The role of the brokers needs these on every node of a Citus cluster, because Citus opens
# connections of its own to the nodes. Without lock_timeout, a wait for a lock on a node has no end.
CLUSTER: Mapping[str, str] = _PLANS | _CITUS | {"lock_timeout": _LIMITS["lock_timeout"]}


def missing_settings(actual: Sequence[str]) -> Iterator[str]:
    """Yields one sentence that lists the settings of NEEDED that a session lacks, if there are any:
    a pooler did not pass them on. `actual` has the session's values, in the order of NEEDED."""
    missing = [f"{name}={value}" for (name, value), found in zip(NEEDED.items(), actual, strict=True) if found != value]
    if missing:
        yield f"the pooler does not pass on session settings; set them with ALTER ROLE: {' '.join(missing)}"


def session_parameters(*, has_pooler: bool) -> dict[str, str]:
    """Returns the settings that the broker sends when it opens a connection.

    Behind a pooler these are only the settings that poolers pass on. The broker does not use SET
    for the others, because their values would stay in a session that the pooler lends to other
    clients.
    """
    if has_pooler:
        return dict(_PASSED_BY_POOLERS)
    return {**_PASSED_BY_POOLERS, **_PLANS, **_LIMITS, **_KEEPALIVES, **_CITUS}
