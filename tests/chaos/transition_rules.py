"""Rules for the audit log: legal transitions, counted attempts, leases that end for a reason, dead
letters with a cause. Pure.

The checks follow the order of the commits. Only times at which a broker acts (the end of a
lease, run_at, expires_at) have a tolerance: each broker knows the database's clock to within
half of its best round trip. The first round trip may be long, because it includes the
connection: on a busy machine brokers were half a second ahead in their first second. In 20,000
jobs on a busy machine nothing was early by the database's clock; the nearest was 0.3 ms late.
"""

from collections.abc import Iterator

from app.settings import Settings
from tests.chaos.audit_log import AuditRow
from tests.chaos.facts import Facts
from tests.chaos.transitions import GONE, Transition

WAITING = {"scheduled", "ready", "pending"}
ENDED = {"completed", "dead", "cancelled"}
LIVE = WAITING | {"blocked", "running"}
LEGAL: dict[str, set[str]] = {
    GONE: {"scheduled", "blocked", "ready", "pending", "running"},
    "blocked": WAITING | {"blocked", "dead", "cancelled", GONE},
    "scheduled": WAITING | ENDED | {GONE},
    "ready": WAITING | ENDED | {"running", GONE},
    "pending": WAITING | ENDED | {GONE},
    "running": WAITING | ENDED | {"running"},
    "dead": WAITING | {GONE},
    "completed": set(),
    "cancelled": set(),
}
MAY_STOP = ("running", "completed", "cancelled")  # states of a running job after an accepted cancel
TOLERANCE, TOLERANCE_IN_FAULT = (
    0.05,
    1.0,
)  # seconds by which a broker may be early
MAX_WAIT_SECONDS = 5.0  # seconds for which a claim may wait for a connection after it has read the clock
WARM_UP_SECONDS = 5.0  # seconds after the first call: the brokers have just started
MAX_CRASHES = int(Settings.model_fields["max_crashes"].default)
MAX_DELIVERIES = int(Settings.model_fields["max_deliveries"].default)


def all_transitions(facts: Facts) -> Iterator[Transition]:
    for found in facts.transitions.values():
        yield from found


def w1_transitions_are_legal(facts: Facts) -> list[str]:
    """Every change is a legal transition, no job leaves completed or cancelled, and every change
    is recorded."""
    found = []
    for step in all_transitions(facts):
        if step.new not in LEGAL[step.old] or (
            step.before and step.after and step.before.source == step.after.source != "jobs"
        ):
            found.append(
                f"illegal transition: {step.row.id} {step.old or 'nothing'} -> {step.new or 'nothing'}, "
                f"change {step.row.n}"
            )
        if step.after and step.after.op == "UPDATE" and step.after.old_state != step.old:
            found.append(f"unrecorded change: {step.row.id} was {step.old}, then {step.after.old_state}")
        if step.before and step.after and step.before.cancelling and step.old == "running" and step.new not in MAY_STOP:
            found.append(f"cancellation requested, but {step.new}: {step.row.id}")
    return found + _last_states(facts)


def _last_states(facts: Facts) -> list[str]:
    last = {id: steps[-1].new for id, steps in facts.transitions.items()}
    if not last:
        return []
    found = [
        f"{row.id} is {row.state} at the end, last recorded as {last.get(row.id, 'never')}"
        for row in facts.final_state.stored
        if last.get(row.id) != row.state
    ]
    kept = {row.id for row in facts.final_state.stored}
    return found + [
        f"{id} does not exist at the end, last recorded as {state}"
        for id, state in last.items()
        if state and id not in kept
    ]


def w2_attempts_are_counted(facts: Facts) -> list[str]:
    """A claim adds one delivery and one attempt, and has a new token; no other change adds to
    them, except that a late failure counts the attempt that its delivery was refunded."""
    found = []
    for id, steps in facts.transitions.items():
        tokens: set[str] = set()
        refunded: set[str] = set()  # tokens whose lease the broker ended at no cost
        for step in steps:
            is_refunded = step.row.token in refunded
            violation = (
                _claim_violation(step, tokens) if step.is_claim else _count_violation(step, is_refunded=is_refunded)
            )
            if step.is_refund:
                refunded.add(step.row.token)
            if violation:
                found.append(
                    f"{violation}: {id}, {step.old or 'nothing'} -> {step.new or 'nothing'}, change {step.row.n}"
                )
            tokens.add(step.row.token)
    return found


def _claim_violation(step: Transition, tokens: set[str]) -> str:
    after, before = step.after, step.before
    assert after is not None
    if after.token in tokens or not after.token:
        return "token was used before"
    if after.deliveries != (before.deliveries if before else 0) + 1:
        return f"delivery {before.deliveries if before else 0} -> {after.deliveries}"
    if after.attempt != (before.attempt if before else 0) + 1 or after.attempt > after.max_attempts:
        return f"attempt {before.attempt if before else 0} -> {after.attempt} of {after.max_attempts}"
    return ""


def _count_violation(step: Transition, *, is_refunded: bool) -> str:
    before, after = step.before, step.after
    if before is None or after is None:
        return ""
    if step.old == step.new == "running" and before.token != after.token:
        return "token changed while running"
    if before.deliveries != after.deliveries:
        return f"delivery {before.deliveries} -> {after.deliveries}"
    if step.old == "dead":
        return (
            ""
            if after.attempt == after.crashes == 0
            else f"replayed with attempt {after.attempt} and {after.crashes} crashes"
        )
    change = (after.attempt - before.attempt, after.crashes - before.crashes)
    return (
        ""
        if change in _allowed(step, is_refunded=is_refunded)
        else f"attempt {before.attempt} -> {after.attempt}, crashes {before.crashes} -> {after.crashes}"
    )


def _allowed(step: Transition, *, is_refunded: bool) -> set[tuple[int, int]]:
    """Returns the allowed changes of attempt and crashes.

    A run that the broker ended was never delivered, or its lease expired, or it exceeded its
    timeout."""
    if step.old != "running" and step.settlement == "fail" and is_refunded:
        return {(1, 0)}
    if step.old != "running" or step.new in ("running", "completed") or step.settlement == "fail":
        return {(0, 0)}
    if step.new == "cancelled":
        return {(0, 0), (0, 1)} if not step.settlement else {(0, 0)}
    return {(-1, 0)} if step.settlement else {(-1, 0), (0, 1), (0, 0)}


def w3_leases_end_for_a_reason(facts: Facts) -> list[str]:
    """The broker ends a lease when it has expired or its run has exceeded its timeout, not
    earlier."""
    found = []
    for step in all_transitions(facts):
        before, after = step.before, step.after
        if before is None or after is None or step.old != "running" or step.new == "running" or step.settlement:
            continue
        if after.attempt < before.attempt or (step.new == "cancelled" and after.crashes == before.crashes):
            continue  # not delivered, or omitted from its worker's heartbeat
        end = before.lease_until if after.crashes > before.crashes else before.deadline
        if not end or _is_too_early(facts, after, end):
            found.append(
                f"lease ended {end - facts.database_time(after.at):.3f} s early: {after.id} delivery {after.deliveries}"
            )
    return found


def _is_too_early(facts: Facts, row: AuditRow, instant: float) -> bool:
    early = instant - facts.database_time(row.at)
    is_quiet = row.at > facts.began + WARM_UP_SECONDS and not facts.fault_active(row.at, row.at)
    return early > (TOLERANCE if is_quiet else TOLERANCE_IN_FAULT) and not facts.clock_jumped(row.at, row.at)


def w4_dead_letters_have_a_cause(facts: Facts) -> list[str]:
    dead = [step for step in all_transitions(facts) if step.new == "dead"]
    return [
        f"dead as {step.row.reason}, but {violation}: {step.row.id}"
        for step in dead
        if (violation := _missing_cause(facts, step))
    ]


def _missing_cause(facts: Facts, step: Transition) -> str:
    before, after = step.before, step.after
    assert before is not None
    assert after is not None
    if after.reason == "attempts_exhausted":
        is_used = step.settlement == "fail" or (step.old == "running" and not step.settlement)
        return (
            ""
            if is_used and after.attempt >= after.max_attempts
            else f"after attempt {after.attempt} of {after.max_attempts}"
        )
    if after.reason == "poison":
        crashed = after.crashes > before.crashes and after.crashes >= MAX_CRASHES
        return "" if crashed else f"{after.crashes} leases expired"
    if after.reason == "not_retryable":
        return "" if _was_reported(facts, step) else "its worker did not report it"
    if after.reason == "expired":
        due = (
            before.expires_at
            and step.old in (*WAITING, "blocked")
            and not _is_too_early(facts, after, before.expires_at)
        )
        return "" if due else f"it was {step.old} and expires_at {before.expires_at:.3f}"
    if after.reason == "undeliverable":
        return "" if after.deliveries >= MAX_DELIVERIES else f"it was delivered {after.deliveries} times"
    return "that is not a known reason"


def _was_reported(facts: Facts, step: Transition) -> bool:
    """Returns whether the worker of the lease may have reported a failure without retry."""
    lease = facts.leases.get(step.row.id + step.row.token)
    calls = lease.possibly_accepted("fail") if lease else []
    return step.settlement == "fail" and any(not call.item.retryable for call in calls)


def w5_jobs_run_in_their_time(facts: Facts) -> list[str]:
    return [*_early(facts), *_late(facts)]


def _late(facts: Facts) -> Iterator[str]:
    """No job is started from its expires_at on: by the time that its broker stored for the start,
    and by the database's clock, as far as the claim need not have waited for a connection."""
    for step in all_transitions(facts):
        row = step.row
        if step.is_claim and row.expires_at and (late := _seconds_late(facts, row)) >= 0:
            yield f"{late:.3f} s after expires_at: {row.id} delivery {row.deliveries}"


def _seconds_late(facts: Facts, row: AuditRow) -> float:
    stored = row.started_at - row.expires_at
    began = row.transaction_at - MAX_WAIT_SECONDS
    if facts.clock_jumped(began, row.at):
        return stored
    return max(stored, facts.database_time(began) - row.expires_at)


def _early(facts: Facts) -> list[str]:
    """No job becomes ready or is delivered before its run_at, by the database's clock."""
    found = []
    for steps in facts.transitions.values():
        since = 0.0  # when the job became claimable
        for step in steps:
            after = step.after
            if after is None:
                continue
            since = after.at if step.new in ("ready", "pending") and step.old not in ("ready", "pending") else since
            waited = since if step.old == "ready" else after.at
            if (
                _makes_runnable(step)
                and _is_too_early(facts, after, after.run_at)
                and not facts.clock_jumped(waited, after.at)
            ):
                early = after.run_at - facts.database_time(after.at)
                found.append(f"{early:.3f} s early: {after.id} {step.old or 'nothing'} -> {step.new}")
    return found


def _makes_runnable(step: Transition) -> bool:
    return step.is_claim or (step.old == "scheduled" and step.new in ("ready", "pending"))
