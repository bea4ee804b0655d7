"""The audit log: triggers of the chaos database record every change of a job (audit_log.sql).

The broker's schema has no triggers; the harness installs these only in the database of its run.
"""

from typing import Any

import msgspec

from tests.chaos.database import Postgres
from tests.chaos.history import hashed

ROWS = """
SELECT n, date_part('epoch', at) AS at, date_part('epoch', transaction_at) AS transaction_at,
    xid::text::bigint AS xid, coalesce(snapshot, '') AS snapshot, source, op,
    coalesce(lane >> 8, 0) AS queue, coalesce(lane & 255, 0) AS lane,
    coalesce(id::text, '') AS id, coalesce(old_state, '') AS old_state, coalesce(state, '') AS state,
    coalesce(reason, '') AS reason, coalesce(token::text, '') AS token,
    coalesce(deliveries, 0) AS deliveries, coalesce(attempt, 0) AS attempt, coalesce(max_attempts, 0) AS max_attempts,
    coalesce(crashes, 0) AS crashes, coalesce(settled_as, '') AS settled_as, coalesce(group_key, '') AS group_key,
    coalesce(unique_key, '') AS unique_key, coalesce(key, '') AS key,
    coalesce(replayed_from::text, '') AS replayed_from, coalesce(priority, 0) AS priority,
    coalesce(date_part('epoch', run_at), 0) AS run_at, coalesce(date_part('epoch', started_at), 0) AS started_at,
    coalesce(date_part('epoch', lease_expires_at), 0) AS lease_until,
    coalesce(date_part('epoch', deadline_at), 0) AS deadline, coalesce(date_part('epoch', expires_at), 0) AS expires_at,
    cancel_requested_at IS NOT NULL AS cancelling, coalesce(date_part('epoch', by), 0) AS clock_offset
FROM audit_log
WHERE n > $1
ORDER BY n
LIMIT $2
"""
PAGE = 100_000


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job's row after an insert or update, or before a delete.

    Times are Unix times; 0 means none."""

    n: int
    at: float  # the machine's clock
    xid: int
    transaction_at: float = 0  # when the transaction began: it has locked no row before
    snapshot: str = ""  # of a change to ready or running: the transactions that its statement saw
    source: str = "jobs"  # its table, or "clock"
    op: str = "UPDATE"
    queue: int = 1
    lane: int = 0  # its number in the queue
    id: str = ""
    old_state: str = ""  # of an update
    state: str = ""
    reason: str = ""
    token: str = ""  # its hash
    deliveries: int = 0
    attempt: int = 0
    max_attempts: int = 0
    crashes: int = 0
    settled_as: str = ""
    group_key: str = ""
    unique_key: str = ""
    key: str = ""  # of an insert: the key in the payload
    replayed_from: str = ""  # the dead letter of another queue that it was replayed from
    priority: int = 0
    run_at: float = 0
    started_at: float = 0  # by the clock of the broker that delivered it
    lease_until: float = 0
    deadline: float = 0
    expires_at: float = 0
    cancelling: bool = False
    clock_offset: float = 0  # of source clock: seconds by which the database's clock is ahead from now on


def read(postgres: Postgres) -> list[AuditRow]:
    rows: list[AuditRow] = []
    while page := postgres.rows(ROWS, rows[-1].n if rows else 0, PAGE):
        rows += [_row(dict(record)) for record in page]
    return rows


def _row(fields: dict[str, Any]) -> AuditRow:
    token = fields.pop("token")
    return AuditRow(**fields, token=hashed(token) if token else "")
