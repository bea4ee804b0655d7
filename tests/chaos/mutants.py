"""Deliberate bugs, applied to a broker from outside: rewritten statements, and replaced functions
(mutation_code.py).

Each names the situation in which it shows and the invariants that may report it. A bug whose
text is no longer in the statement fails at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

from app.concurrency import store as limits
from app.db.migrations import ROOT
from app.db.queries import Queries, compile_statement
from app.jobs import store as jobs
from app.leases import store as leases
from app.locks import store as keys
from app.schedules import store as schedules
from tests.chaos import mutation_code as code

Bug = Callable[[], None]


@dataclass(frozen=True)
class Mutant:
    """A deliberate bug.

    - `description`: the bug; `R6` and `A11` are rules and faults in docs/reliability.
    - `bugs` are applied in the process of a broker, `claim_changes` to the text of the function
      `claim_jobs` in the database.
    - `expected_text`: the report must contain it. It is set for invariants with several sentences,
      because a slow machine may cause another of them."""

    description: str
    situation: str
    invariants: tuple[str, ...]
    bugs: tuple[Bug, ...] = ()
    expected_text: str = ""
    claim_changes: tuple[tuple[str, str], ...] = ()


def rewrite(statements: Queries, name: str, old: str, new: str) -> Bug:
    def apply_bug() -> None:
        text = vars(statements)[name].text
        assert old in text, f"{name} does not contain {old}"
        vars(statements)[name] = compile_statement(name, text.replace(old, new), {})

    return apply_bug


def skip_lease_check(name: str) -> Bug:
    unchanged = "(input.expected_expiry IS NULL OR jobs.lease_expires_at = input.expected_expiry)"
    return rewrite(leases.SQL, name, unchanged, "true")


LEASE_TOKEN = "(coalesce(claims[job.slice], '') || right(md5(secret || jobs.id::text), 16))::uuid"
ENDS_SOON = "(state = 'ready' OR (state = 'running' AND lease_expires_at < claimed_at + interval '1.5 s'))"
YOUNGEST_OF_SPAN = ("ORDER BY id\n                ) AS job", "ORDER BY id DESC\n                ) AS job")

MUTANTS = {
    # Fencing tokens
    "complete_no_fence": Mutant(
        "R6: any token completes",
        "late workers",
        ("I6", "I4"),
        (rewrite(leases.SQL, "complete", " AND jobs.lease_token = input.token AND jobs.settled_as IS NULL", ""),),
    ),
    "end_no_fence": Mutant(
        "R6: any token fails, snoozes and releases",
        "late workers",
        ("I6", "I5"),
        (rewrite(leases.SQL, "get_leases", " AND jobs.lease_token = input.token", ""),),
    ),
    "beat_no_fence": Mutant(
        "A11: any token extends the lease of the job",
        "late workers",
        ("I6",),
        (
            rewrite(leases.SQL, "heartbeat", " AND jobs.lease_token = input.token", ""),
            rewrite(leases.SQL, "heartbeat", "RETURNING jobs.id, jobs.lease_token", "RETURNING jobs.id, input.token"),
        ),
    ),
    "same_token_again": Mutant(
        "R6: a job has the same token at every delivery",
        "late workers",
        ("I5", "I6", "W2"),
        claim_changes=((LEASE_TOKEN, "md5(jobs.id::text)::uuid"),),
    ),
    # Leases
    "reaps_the_living": Mutant(
        "the lease rescuer ends leases that have not expired",
        "late workers",
        ("I5",),
        (
            rewrite(
                leases.SQL,
                "expired_leases",
                "lease_expires_at <= :now",
                "lease_expires_at <= :now::timestamptz + interval '1 day'",
            ),
            rewrite(
                leases.SQL, "due_checks", "check_at <= :until", "check_at <= :until::timestamptz + interval '1 day'"
            ),
            rewrite(leases.SQL, "get_leases", "jobs.lease_expires_at,", "jobs.lease_expires_at - interval '1 day',"),
            *(skip_lease_check(name) for name in ("requeue", "move_to_dead_letters", "finish_cancelled")),
        ),
    ),
    "hands_out_too_soon": Mutant(
        "a claim takes jobs whose lease ends soon, while their worker may still extend it",
        "late workers",
        ("I5",),
        claim_changes=(
            ("id >= span.first_id AND id <= span.last_id\n", "id <= span.last_id\n"),
            ("state = 'ready'", ENDS_SOON),
        ),
    ),
    "claims_twice": Mutant(
        "a claim neither locks the jobs that it selects nor checks their state again",
        "late workers",
        ("I5",),
        claim_changes=(
            ("FOR UPDATE SKIP LOCKED", ""),
            ("jobs.id = job.id\n            AND state = 'ready'", "jobs.id = job.id"),
        ),
    ),
    "clock_of_the_broker": Mutant(
        "R11: leases use the broker's own clock, and one clock is wrong",
        "dead workers",
        ("I5",),
        (code.use_broker_clock,),
    ),
    "unordered_locks": Mutant(
        "R12: jobs are requeued in the order of the request",
        "dead workers",
        ("I9",),
        (code.unordered_locks,),
        expected_text="deadlocks",
    ),
    "attempt_not_counted": Mutant(
        "a delivery costs no attempt",
        "dead workers",
        ("I7",),
        claim_changes=(("attempt = attempt + 1", "attempt = attempt"),),
    ),
    "release_spends": Mutant(
        "release and snooze do not refund the attempt",
        "late workers",
        ("I7",),
        (rewrite(leases.SQL, "requeue", "attempt = locked.attempt", "attempt = jobs.attempt"),),
    ),
    # Repeated calls
    "no_dedupe": Mutant(
        "R1: an Idempotency-Key is acquired anew by each call",
        "lost replies",
        ("I3",),
        (
            rewrite(
                keys.SQL,
                "acquire_idempotency_key",
                "WHERE deduplication_keys.expires_at <= :retention_now",
                "WHERE :retention_now::timestamptz IS NOT NULL",
            ),
        ),
    ),
    "token_rotated": Mutant(
        "R2: a repeated claim gets new tokens", "lost replies", ("I5", "I10"), (code.rotate_token,)
    ),
    "released_and_replayed": Mutant(
        "R3: leases are returned on disconnect, although the claim has a key",
        "cut clients",
        ("I5",),
        (code.return_despite_key,),
    ),
    # Database failures
    "errors_swallowed": Mutant(
        "a failed settlement is reported as done", "cut database", ("I4", "I10", "I12"), (code.swallow_errors,)
    ),
    "unknown_as_not_done": Mutant(
        "R7: every failure is reported as not_done", "cut database", ("I10",), (code.report_unknown_as_not_done,)
    ),
    "fire_and_forget": Mutant(
        "jobs are acknowledged before they are stored", "cut database", ("I1",), (code.acknowledge_before_insert,)
    ),
    "batch_in_parts": Mutant(
        "the key and the lanes of a batch are committed one by one",
        "cut database",
        ("I1", "I3"),
        (code.split_batch_transactions,),
    ),
    "keyless_batch_by_lane": Mutant(
        "a batch over several lanes without a key is stored lane by lane",
        "keyless batches",
        ("I3", "W8"),
        (code.split_keyless_batches,),
    ),
    "replay_in_two": Mutant(
        "a replay into another queue takes two transactions",
        "replays",
        ("I1", "W8"),
        (code.replay_in_two_transactions,),
    ),
    "commits_not_flushed": Mutant(
        "R19: sessions have synchronous_commit=off",
        "killed database",
        ("I1",),
        (code.disable_synchronous_commit,),
        expected_text="lost",
    ),
    # False responses
    "gives_up_at_once": Mutant(
        "the first failure makes the job a dead letter", "late workers", ("I13", "W4"), (code.no_retries,)
    ),
    "cancel_not_done": Mutant(
        "a waiting job is reported as cancelled, but runs",
        "cancels",
        ("I13", "W7"),
        (code.report_cancel_without_effect,),
    ),
    "refused_and_done": Mutant(
        "completions are reported as lost, but are stored", "lost replies", ("W7",), (code.report_completions_as_lost,)
    ),
    "result_lost": Mutant(
        "a completed job has no result",
        "lost replies",
        ("I13",),
        (
            rewrite(
                leases.SQL,
                "complete",
                "'completed', result\n",
                "'completed', NULL\n",
            ),
        ),
    ),
    "deaf_to_sigterm": Mutant(
        "R15: a broker does not exit on SIGTERM", "rolling", ("I9",), (code.ignore_sigterm,), expected_text="SIGTERM"
    ),
    "exits_with_error": Mutant(
        "a broker exits on SIGTERM, but with an error",
        "rolling",
        ("I9",),
        (code.exit_with_error,),
        expected_text="exited by itself or with an error",
    ),
    # Ready spans and lease checks
    "requeue_without_span": Mutant(
        "a job that is requeued has no ready span",
        "late workers",
        ("I9",),
        (rewrite(leases.SQL, "requeue", "FROM changed\n    WHERE state = 'ready'", "FROM changed\n    WHERE false"),),
        expected_text="without coverage",
    ),
    "claim_without_check": Mutant(
        "a claim inserts no lease check",
        "dead workers",
        ("I9",),
        expected_text="without coverage",
        claim_changes=(("GROUP BY job.slice;", "GROUP BY job.slice\n        HAVING false;"),),
    ),
    # Maintenance services
    "paused_not_swept": Mutant(
        "expired leases of paused queues are not ended",
        "paused queue",
        ("I9",),
        (
            rewrite(
                leases.SQL,
                "expired_leases",
                "lease_expires_at <= :now",
                "lease_expires_at <= :now AND NOT EXISTS"
                " (SELECT FROM queues WHERE id = lane >> 8 AND paused_at IS NOT NULL)",
            ),
        ),
        expected_text="was not ended",
    ),
    "overdue_not_promoted": Mutant(
        "scheduled jobs that are due for more than a minute stay scheduled",
        "long outage",
        ("I9",),
        (
            rewrite(
                jobs.SQL,
                "due_jobs",
                "due_at <= :now",
                "due_at <= :now AND due_at > :now::timestamptz - interval '60 s'",
            ),
        ),
        expected_text="'scheduled'",
    ),
    # Stored data
    "dead_letter_dropped": Mutant(
        "a dead job leaves no dead letter",
        "dead workers",
        ("I1",),
        (
            rewrite(
                leases.SQL,
                "move_to_dead_letters",
                "fingerprint, error_type\n    FROM deleted",
                "fingerprint, error_type\n    FROM deleted WHERE false",
            ),
        ),
    ),
    "payload_touched": Mutant(
        "a payload is changed before it is stored", "high concurrency", ("I2",), (code.change_payload,)
    ),
    "stats_not_counted": Mutant(
        "completions are not counted",
        "high concurrency",
        ("I9",),
        (
            rewrite(
                leases.SQL,
                "complete",
                "-count(*) FILTER (WHERE previous_state = 'running'), count(*)",
                "-count(*) FILTER (WHERE previous_state = 'running'), 0",
            ),
        ),
        expected_text="statistics report",
    ),
    # Queue limits and order
    "unique_unchecked": Mutant(
        "unique keys are not checked",
        "high concurrency",
        ("I3",),
        (code.skip_unique_check,),
        expected_text="unique key",
    ),
    "limit_not_counted": Mutant(
        "max_running limits one claim instead of all leases",
        "high concurrency",
        ("I5 limits",),
        (rewrite(limits.SQL, "count_slots", "count(*)", "0 * count(*)"),),
    ),
    "last_in_first_out": Mutant(
        "the youngest job is claimed first",
        "single consumer",
        ("I8",),
        claim_changes=(("ORDER BY priority DESC, first_id", "ORDER BY first_id DESC"), YOUNGEST_OF_SPAN),
    ),
    "lane_reversed": Mutant(
        "a claim takes the youngest jobs of its lane first",
        "several lanes",
        ("W9",),
        claim_changes=(
            ("ORDER BY priority DESC, first_id", "ORDER BY priority DESC, first_id DESC"),
            YOUNGEST_OF_SPAN,
        ),
        expected_text="in wide lane",
    ),
    "group_reversed": Mutant(
        "the youngest job of a group is admitted first",
        "several groups",
        ("W9",),
        (rewrite(limits.SQL, "next_pending", "ORDER BY id", "ORDER BY id DESC"),),
        expected_text="ready before",
    ),
    "started_too_late": Mutant(
        "jobs that have missed their start deadline are delivered",
        "several lanes",
        ("W5",),
        (rewrite(jobs.SQL, "past_start_deadline", "start_by <= :now", "false"),),
        claim_changes=(("AND (expires_at IS NULL OR expires_at > claimed_at)", ""),),
        expected_text="after expires_at",
    ),
    "purge_without_effect": Mutant(
        "a purge of a queue is accepted, but removes nothing",
        "purges",
        ("W10",),
        (rewrite(jobs.SQL, "purge_waiting", "WHERE lane = :lane", "WHERE false AND lane = :lane"),),
        expected_text="purged, but still there",
    ),
    "claims_while_paused": Mutant(
        "a queue that is paused delivers jobs",
        "paused queue",
        ("I14", "W10"),
        (code.ignore_pauses,),
    ),
    "early": Mutant(
        "jobs become ready three seconds before run_at",
        "high concurrency",
        ("I11",),
        (
            rewrite(jobs.SQL, "due_jobs", "due_at <= :now", "due_at <= :now::timestamptz + interval '3 s'"),
            rewrite(jobs.SQL, "make_due_ready", "run_at <= :now", "run_at <= :now::timestamptz + interval '3 s'"),
        ),
    ),
    "fired_by_all": Mutant(
        "B9: every broker enqueues the job of a due schedule",
        "schedules",
        ("I11",),
        (rewrite(schedules.SQL, "lock_due_schedule", "FOR UPDATE SKIP LOCKED", ""),),
    ),
}


def changed_claim(name: str) -> str:
    """Returns the statement that replaces the function `claim_jobs`; an empty text if the bug changes
    another part."""
    changes = MUTANTS[name].claim_changes if name else ()
    text = (ROOT / "alembic" / "versions" / "0001_baseline.8_claims.up.sql").read_text()
    text = text[text.index("CREATE FUNCTION claim_jobs(") : text.index("$$;") + 3]
    for old, new in changes:
        assert old in text, f"claim_jobs does not contain {old}"
        text = text.replace(old, new)
    return text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1) if changes else ""


def apply(name: str) -> None:
    """Applies a bug in the process of the broker, before it serves."""
    for bug in MUTANTS[name].bugs:
        bug()
