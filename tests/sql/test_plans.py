"""Every statement of the fast routes uses its index, whatever the planner statistics are.

The statistics are missing, or from empty tables, from before the claims, or from after the claims.
The tables are large enough for any other scan to be expensive."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pprint import pformat
from typing import Any

import pytest
from asyncpg import Record

from app.db.pool import Database
from app.db.queries import compile_statement
from app.leases.rows import ClaimParams, LanePolicy
from app.leases.store import claim
from app.metrics import Metrics
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, create_database
from tests.sql.explain import Scan, explain, explain_nested
from tests.sql.rules import names_its_lane
from tests.sql.statements import ALL_STATEMENTS, TABLES_WITH_LANES, Statement, statement_named

PARAMS = ClaimParams(
    worker_id="w",
    secret="s",
    lease_seconds=None,
    default_lease_seconds=60,
    max_bytes=2**30,
    allow_one_oversized=True,
    job_types=None,
)
NOW = datetime.now(UTC)
JOBS = """
INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
SELECT 256 + n % 2, gen_random_uuid(), 'ready', now(), 0, 5, 'test', repeat('x', 200)
FROM generate_series(1, 20000) AS n
"""
FUTURE = JOBS.replace("'ready', now()", "'scheduled', now() + make_interval(days => 1)")
FINISHED = """
INSERT INTO finished_jobs (lane, id, state, finished_at, keep_until, archive, attempt, crashes, run_at,
    deliveries, priority, max_attempts, replay_count, job_type, payload)
SELECT 256 + n % 2, gen_random_uuid(), 'completed', now(), now() + make_interval(days => 1), false, 1, 0,
    now(), 1, 0, 5, 0, 'test', '1'
FROM generate_series(1, 20000) AS n
"""
DEAD_LETTERS = """
INSERT INTO dead_letters (lane, id, attempt, crashes, deliveries, priority, max_attempts, replay_count, run_at, dead_at,
    reason, fingerprint, job_type, payload)
SELECT 256 + n % 2, gen_random_uuid(), 1, 0, 1, 0, 5, 0, now(), now() - make_interval(secs => n),
    'poison', 'x', 'test', '1'
FROM generate_series(1, 20000) AS n
"""
KEYS = """
INSERT INTO deduplication_keys (lane, digest, expires_at)
SELECT n % 256, gen_random_uuid(), now()
FROM generate_series(1, 20000) AS n
"""
PARTS_OF_TEN = """
SELECT lane, array_agg(id ORDER BY id) AS ids
FROM (SELECT lane, id, state, row_number() OVER (PARTITION BY lane, state ORDER BY id) / 10 AS part FROM jobs) AS parts
WHERE state = '{state}'
GROUP BY lane, part
"""
SPANS = f"""
INSERT INTO ready_spans (lane, priority, first_id, last_id)
SELECT lane, 0, ids[1], ids[cardinality(ids)]
FROM ({PARTS_OF_TEN.format(state="ready")}) AS span
"""
CLAIM_HALF = """
UPDATE jobs
SET state = 'running', lease_expires_at = now() + make_interval(secs => 60), lease_token = id, worker_id = 'w',
    started_at = now()
WHERE state = 'ready' AND id < '80000000-0000-0000-0000-000000000000'
"""
CHECKS = f"""
INSERT INTO lease_checks (lane, check_at, claim, worker_id, job_ids)
SELECT lane, now() + make_interval(secs => 60), uuid_send(ids[1]), 'w', ids
FROM ({PARTS_OF_TEN.format(state="running")}) AS claim
"""
ROWS = [JOBS, FUTURE, FINISHED, DEAD_LETTERS, KEYS, SPANS]
STATISTICS = {
    "no statistics": ROWS,
    "statistics of empty tables": ["ANALYZE"],
    "statistics before the claims": [*ROWS, "ANALYZE", CLAIM_HALF, CHECKS],
    "statistics after the claims": [*ROWS, CLAIM_HALF, CHECKS, "ANALYZE"],
}

# The indexes that each statement uses. An index on (lane, id) must also be searched by the id.
INDEXES = {
    "enqueue": set[str](),
    "first_ready": {"ready_spans_order", "jobs_pkey"},
    "count_leases_of_caller": {"jobs_quota_owner"},
    "leases_with_secret": {"jobs_pkey"},
    "heartbeat": {"jobs_pkey"},
    "check_shortened_leases": {"jobs_pkey"},
    "complete": {"jobs_pkey", "lease_checks_pkey"},
    "get_leases": {"jobs_pkey"},
    "requeue": {"jobs_pkey"},
    "move_to_dead_letters": {"jobs_pkey"},
    "finish_cancelled": {"jobs_pkey"},
    "mark_unreported": {"jobs_pkey"},
    "settlement_records": {"jobs_pkey", "finished_jobs_id", "dead_letters_pkey"},
    "due_checks": {"lease_checks_check_at"},
    "expired_leases": {"jobs_pkey"},
    "move_checks": {"lease_checks_pkey", "jobs_pkey"},
    "leases_of_worker": {"lease_checks_worker_id", "jobs_pkey"},
    "get_worker": {"lease_checks_worker_id", "jobs_pkey"},
    "list_workers": {"lease_checks_worker_id", "jobs_pkey"},
    "ready_lanes": {"ready_spans_order"},
    "oldest_ready": {"ready_spans_order", "jobs_pkey"},
    "make_due_ready": {"jobs_pkey"},
    "due_jobs": {"jobs_due"},
    "next_due": {"jobs_due"},
    "due_times": {
        "jobs_due",
        "jobs_start_deadline",
        "lease_checks_check_at",
        "jobs_pending",
        "finished_parents_pkey",
        "group_cooldowns_pkey",
    },
    "add_coverage": {"jobs_pkey", "ready_spans_order", "lease_checks_pkey"},
    "spans_after": {"jobs_pkey", "ready_spans_order"},
    "lock_spans": {"ready_spans_order"},
    "delete_empty_spans": {"jobs_pkey", "ready_spans_order"},
    "live_jobs": {"jobs_pkey"},
    "finished_jobs": {"finished_jobs_id"},
    "dead_jobs": {"dead_letters_pkey"},
    "dead_ids": {"dead_letters_pkey"},
    "payloads": {"dead_letters_pkey"},
    "update_job": {"jobs_pkey"},
    "run_now": {"jobs_pkey"},
    "cancel_waiting": {"jobs_pkey"},
    "request_cancel": {"jobs_pkey"},
    "purge_waiting": {"jobs_pkey"},
    "replay": {"dead_letters_pkey", "dependents_pkey"},
    "remove": {"dead_letters_pkey"},
    "purge": {"dead_letters_pkey"},
    "dead_letters_past_retention": {"dead_letters_dead_at"},
    "read_idempotency_key": {"deduplication_keys_pkey"},
    "stored_response": {"deduplication_keys_pkey"},
    "write_key_response": {"deduplication_keys_pkey"},
    "expired_keys": {"deduplication_keys_expires_at"},
    "delete_keys": {"deduplication_keys_pkey"},
    "extend_keys": {"deduplication_keys_pkey"},
    "assign_unique_keys": {"deduplication_keys_pkey"},
    "lock_lane": {"lane_locks_pkey"},
    "try_lock_lane": {"lane_locks_pkey"},
    "lane_lock_exists": {"lane_locks_pkey"},
    "aggregate": {"stat_deltas_lane"},
    "replace_waiting": {"jobs_pkey"},
    "move_unstarted_to_dead_letters": {"jobs_pkey"},
    "past_start_deadline": {"jobs_start_deadline"},
    "mark_parents": {"jobs_pkey"},
    "parent_states": {"finished_jobs_id", "dead_letters_pkey"},
    "children_of": {"dependents_pkey", "finished_parents_pkey", "jobs_pkey"},
    "unblock": {"jobs_pkey"},
    "to_be_cancelled": {"jobs_pkey"},
    "delete_dependents": {"dependents_pkey"},
    "delete_finished_parents": {"dependents_pkey", "finished_parents_pkey", "jobs_pkey"},
    "count_slots": {"jobs_uses_slot"},
    "rate_limit_usage": {"rate_limit_usage_at"},
    "record_usage": {"rate_limit_usage_at"},
    "group_usage": {"jobs_admissions"},
    "next_pending": {"jobs_pending"},
    "last_passes": {"jobs_admissions", "jobs_admitted"},
    "admit": {"jobs_pkey"},
    "revoke_admissions": {"jobs_admissions", "jobs_pkey"},
    "revoke_above_limit": {"jobs_admissions", "jobs_pkey"},
    "hold_back_first_ready": {"ready_spans_order", "jobs_pkey"},
    "apply_rules_to_page": {"jobs_pkey"},
    "leases_of_queues": {"lease_checks_pkey", "jobs_pkey"},
    "assign_slots": {"jobs_pkey"},
    "pending_groups": {"jobs_pending"},
    "lanes_with_pending": {"jobs_pending"},
    "cooldowns_of": {"group_cooldowns_pkey"},
    "set_probe": {"group_cooldowns_pkey"},
    "clear_cooldowns": {"group_cooldowns_pkey"},
    "probe_states": {"jobs_pkey"},
    "waiting_job": {"jobs_pkey"},
    "is_job_live": {"jobs_pkey"},
    "live_ids": {"jobs_pkey"},
    "parent_sizes": {"finished_jobs_id", "dead_letters_pkey"},
    "results": {"finished_jobs_id"},
    "admitted_of_group": {"jobs_admissions"},
    "ahead_in_group": {"jobs_pending"},
    "ahead_in_queue": {"ready_spans_order", "jobs_pkey"},
    "ahead_admitted": {"jobs_admitted"},
    "oldest_pending": {"jobs_pending"},
}

# These statements read a whole lane by design, page by page.
FULL_LANE = {"apply_rules_to_page", "add_coverage"}


class Recorder:
    """Records the statement that a store function sends."""

    def __init__(self, sent: list[tuple[str, tuple[object, ...]]]) -> None:
        self._sent = sent

    async def rows(self, sql: str, *args: object) -> list[Record]:
        self._sent.append((sql, args))
        return []

    async def row(self, sql: str, *args: object) -> Record | None:
        raise NotImplementedError

    async def value(self, sql: str, *args: object) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module", params=STATISTICS)
def statistics(request: pytest.FixtureRequest) -> str:
    """The state of the planner statistics."""
    return str(request.param)


@pytest.fixture(scope="module")
def db_with_statistics(statistics: str, postgres: str, loop: Loop) -> Iterator[Database]:
    """A database with these planner statistics."""
    dsn = create_database(postgres, loop, f"plans {statistics}")
    db = Database(dsn, TEST_SETTINGS, Metrics())
    loop.run(db.open())
    for sql in STATISTICS[statistics]:
        loop.run(db.rows(sql))
    yield db
    loop.run(db.close())


async def scans(db: Database, statements: Iterable[Statement], *, custom: bool) -> dict[str, list[Scan]]:
    """Returns the scans of the tables with lanes, by statement."""
    async with db.checkout() as checkout:
        explained = {
            statement.name: await explain(checkout.connection, statement, custom=custom) for statement in statements
        }
    return {
        name: [scan for scan in scanned if scan.table.startswith(TABLES_WITH_LANES)]
        for name, scanned in explained.items()
    }


# By ids, or by the range of a ready span.
BY_ID = re.compile(r"\b(id|digest) = |\bid <= \S*last_id")
_BY_ID = ("jobs_pkey", "dead_letters_pkey", "deduplication_keys_pkey", "finished_jobs_")


def parent_index(index: str) -> str:
    """Returns the name of the parent index for the index of a partition."""
    return re.sub(r"^finished_jobs_(default|\d+)_lane_id_idx$", "finished_jobs_id", index)


def mismatches(name: str, scanned: Sequence[Scan]) -> list[str]:
    """Compares the plan of a statement with the indexes that the statement should use."""
    faults = []
    if {parent_index(scan.index) for scan in scanned} != INDEXES[name]:
        faults.append(f"does not use exactly {INDEXES[name]}: {scanned}")
    by_id = [scan for scan in scanned if scan.index.startswith(_BY_ID)]
    if name not in FULL_LANE and not all(BY_ID.search(scan.condition) for scan in by_id):
        faults.append(f"reads the whole lane: {by_id}")
    if not {scan.kind for scan in scanned} <= {"Index Scan", "Index Only Scan"}:
        faults.append(f"does not only scan indexes: {scanned}")
    return faults


@pytest.mark.parametrize("custom", [False, True], ids=["generic", "custom"])
def test_statements_use_their_indexes(loop: Loop, db_with_statistics: Database, custom: bool) -> None:
    plans = loop.run(scans(db_with_statistics, map(statement_named, INDEXES), custom=custom))
    assert plans.keys() == INDEXES.keys()
    found = {name: faults for name, scanned in plans.items() if (faults := mismatches(name, scanned))}
    assert not found, pformat(found)


@pytest.mark.parametrize(
    "changed",
    [
        Scan("Index Scan", "jobs", "jobs_pending", "(lane = 256)"),
        Scan("Index Scan", "jobs", "jobs_pkey", "(lane = 256)"),
        Scan("Seq Scan", "jobs", "", ""),
        Scan("Bitmap Heap Scan", "jobs", "jobs_pkey", "((lane = 256) AND (id = $1))"),
    ],
    ids=["another index", "whole lane", "sequential scan", "bitmap scan"],
)
def test_changed_plan_is_a_mismatch(changed: Scan) -> None:
    expected = Scan("Index Scan", "jobs", "jobs_pkey", "((lane = 256) AND (id = $1))")
    assert mismatches("heartbeat", [expected]) == []
    assert mismatches("heartbeat", [changed])
    assert mismatches("heartbeat", [expected, changed])


def test_statement_without_its_condition_is_a_mismatch(loop: Loop, db_with_statistics: Database) -> None:
    query = compile_statement("waiting_job", "SELECT priority FROM jobs WHERE lane = :lane", {})
    found = loop.run(scans(db_with_statistics, [Statement("explain", query)], custom=False))
    assert mismatches("waiting_job", found["waiting_job"])


WAYS_TO_CLAIM = {
    "plain": (LanePolicy(), None),
    "of some job types": (LanePolicy(), ["test"]),
    "with held groups": (LanePolicy(held_groups=["g"]), None),
    "of a fair queue": (LanePolicy(held_groups=["*", ""], fair=True), None),
}


@pytest.mark.parametrize("custom", [False, True], ids=["generic", "custom"])
@pytest.mark.parametrize("way", WAYS_TO_CLAIM)
def test_statements_of_a_claim_use_their_indexes(
    loop: Loop, db_with_statistics: Database, way: str, custom: bool
) -> None:
    policy, job_types = WAYS_TO_CLAIM[way]

    async def explained() -> list[Scan]:
        sent: list[tuple[str, tuple[object, ...]]] = []
        await claim(
            Recorder(sent), 256, 100, PARAMS._replace(secret=f"{way} {custom}", job_types=job_types), policy, NOW
        )
        async with db_with_statistics.checkout() as checkout:
            (sql, args), *_ = sent
            return await explain_nested(checkout.connection, sql, *args, custom=custom)

    scanned = [scan for scan in loop.run(explained()) if scan.table.startswith(TABLES_WITH_LANES)]
    assert {scan.kind for scan in scanned} <= {"Index Scan", "Index Only Scan", "Tid Scan"}, pformat(scanned)
    indexes = {"jobs_admitted"} if policy.fair else {"jobs_pkey", "ready_spans_order"}
    assert indexes <= {scan.index for scan in scanned} <= {*indexes, "jobs_pkey", "ready_spans_order", ""}
    by_id = [scan for scan in scanned if scan.index == "jobs_pkey"]
    assert all(BY_ID.search(scan.condition) for scan in by_id), pformat(by_id)


@pytest.mark.parametrize("limit", [1, 100])
def test_claim_uses_a_generic_plan(loop: Loop, db_with_statistics: Database, limit: int) -> None:
    """Postgres switches to a generic plan after five calls, unless custom plans seem cheaper."""

    async def generic_plans() -> int:
        async with db_with_statistics.autocommit() as connection:
            await connection.rows("DISCARD PLANS")
            for number in range(10):
                await claim(
                    connection, 256, limit, PARAMS._replace(secret=f"{limit} {number}"), LanePolicy(), datetime.now(UTC)
                )
            count: int = await connection.value(
                "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '/* claim */%'"
            )
            return count

    assert loop.run(generic_plans()) > 0


def test_every_statement_with_a_lane_is_listed_with_its_index() -> None:
    # An upsert finds its row by the conflict target.
    written_only = {"acquire_idempotency_key", "lock_claim_key", "lock_unique_keys"}
    assert {
        statement.name for statement in ALL_STATEMENTS if names_its_lane(statement)
    } <= INDEXES.keys() | written_only
