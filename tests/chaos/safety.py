"""Invariants I1 to I7: no job lost or invented, one job per key, one completion, one lease at a
time, fencing tokens, attempts. Pure.

Each takes the facts and returns a sentence per violation. docs/reliability/chaos.md lists them.
"""

from collections import Counter, defaultdict
from itertools import pairwise

from tests.chaos.facts import CLOCK_TOLERANCE, Facts, Lease, LeaseCall
from tests.chaos.final_state import StoredJob
from tests.chaos.workload import GROUPED, LIMITED, MAX_RUNNING

TERMINAL = ("completed", "dead", "cancelled")


def i1_nothing_acknowledged_is_lost(facts: Facts) -> list[str]:
    """An acknowledged job is completed or a dead letter, or was cancelled by a request."""
    found = []
    for key, response_item in facts.acknowledged.items():
        rows = facts.stored.get(response_item.id, [])
        if not rows:
            if not facts.may_be_removed(key) and response_item.id not in facts.moved:
                found.append(f"lost: {key} was acknowledged as {response_item.id}, but does not exist")
        elif rows[0].state not in TERMINAL:
            found.append(f"unfinished: {key} ({response_item.id}) is {rows[0].state} {rows[0].reason}")
        elif (
            rows[0].state == "cancelled"
            and response_item.id not in facts.cancels
            and not _has_failed_parent(facts, key, rows[0])
        ):
            found.append(f"cancelled without a request: {key} ({response_item.id})")
    return found


def _has_failed_parent(facts: Facts, key: str, row: StoredJob) -> bool:
    """Returns whether a parent failed or was cancelled, even if it was replayed later."""
    parents = [
        facts.acknowledged[parent].id for parent in facts.requested[key].depends_on if parent in facts.acknowledged
    ]
    failed = [
        id
        for id in parents
        if facts.stored.get(id, [None])[0] is None or facts.stored[id][0].state in ("dead", "cancelled")
    ]
    return row.reason == "dependency_failed" and bool(failed or facts.replayed.intersection(parents))


def i2_every_job_was_enqueued(facts: Facts) -> list[str]:
    """Every job that is delivered or stored was enqueued, with the same payload."""
    schedule_runs = {row.id for row in facts.final_state.stored if row.schedule}
    found = [
        f"stored, but never enqueued: {row.id} key {row.key!r}"
        for row in facts.final_state.stored
        if row.key not in facts.requested and not row.schedule
    ]
    for op in facts.ops:
        if op.f != "claim" or op.type != "ok":
            continue
        for item in op.items:
            sent = facts.requested.get(item.key)
            if sent is None and item.id not in schedule_runs:
                found.append(f"delivered, but never enqueued: {item.id} key {item.key!r}")
            elif sent is not None and sent.payload != item.payload:
                found.append(f"payload differs from the request: {item.id} key {item.key}")
    return found


def i3_one_job_per_key(facts: Facts) -> list[str]:
    """All responses to one Idempotency-Key have the same jobs; no job is stored twice; a batch
    is stored completely or not at all."""
    found = []
    for key, calls in facts.enqueues.items():
        responses = {
            tuple(item.id for item in result.items) for _, result in calls if result is not None and result.type == "ok"
        }
        if len(responses) > 1:
            found.append(f"one key, several responses: {key} {sorted(responses)[:2]}")
    copies = Counter(row.key for row in facts.final_state.stored if row.key)
    found += [f"stored {count} times: {key}" for key, count in copies.items() if count > 1]
    found += [f"{len(rows)} rows with id {id}" for id, rows in facts.stored.items() if len(rows) > 1]
    return found + _partial_batches(facts, copies) + _duplicate_unique_keys(facts)


def _partial_batches(facts: Facts, copies: Counter[str]) -> list[str]:
    """Finds calls with only some of their jobs stored.

    Jobs that may have been removed do not count."""
    found = {}
    for op, _ in facts.calls:
        if op.f == "enqueue":
            sent = [item.key for item in op.items if not item.unique and not facts.may_be_removed(item.key)]
            stored = sum(key in copies for key in sent)
            if 0 < stored < len(sent):
                found[sent[0]] = (
                    f"partial batch: {stored} of {len(sent)} jobs of {op.key or 'a call without a key: ' + sent[0]}"
                )
    return list(found.values())


def _duplicate_unique_keys(facts: Facts) -> list[str]:
    """Finds a second job with a unique key, created while the first one was certainly
    unfinished: it was acknowledged, and no call that may finish it had started."""
    # By key: time of the acknowledgement, earliest finish, id.
    holders: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    found = []
    for invoke, result in facts.calls:
        if invoke.f != "enqueue" or result is None or result.type != "ok":
            continue
        for request, response_item in zip(invoke.items, result.items, strict=True):
            if request.unique and response_item.status == "created":
                found += [
                    f"unique key {request.unique} twice: {id} and {response_item.id}"
                    for t1, end, id in holders[request.unique]
                    if id != response_item.id
                    and t1 < invoke.t0
                    and end > result.t1
                    and _may_be_created_by(facts, request.key, invoke.t0)
                ]
                holders[request.unique].append((result.t1, _earliest_finish(facts, response_item.id), response_item.id))
    return found


def _may_be_created_by(facts: Facts, key: str, t0: float) -> bool:
    """Returns whether the call that started at `t0` may have created the job: no earlier call
    with its Idempotency-Key had started."""
    return not any(
        op.t0 < t0 and any(item.key == key for item in op.items)
        for op, _ in facts.enqueues.get(key.rpartition("-")[0], [])
    )


def _earliest_finish(facts: Facts, id: str) -> float:
    """Returns the earliest time at which the job may have finished.

    A cancel has an unknown time, so it counts from the start. From the end of its lease on, the
    job of a dead worker may have been completed, or moved to dead letters by the lease expiry."""
    if id in facts.cancels:
        return 0.0
    return min(
        (
            min([lease.latest_end, *(lease_call.t0 for lease_call in lease.settlements())])
            for lease in facts.by_job.get(id, [])
        ),
        default=0.0,
    )


def i4_one_completion(facts: Facts) -> list[str]:
    """At most one completion is accepted, it is final, and no delivery follows; a lease ends in
    one way."""
    found = [
        f"settled in two ways: {lease.job}, {ways}"
        for lease in facts.leases.values()
        if len(ways := _accepted_outcomes(lease)) > 1
    ]
    for id, leases in facts.by_job.items():
        done = [
            (lease, lease_call)
            for lease in leases
            for lease_call in lease.settlements()
            if lease_call.accepted and lease_call.item.outcome == "complete"
        ]
        if len({lease.token for lease, _ in done}) > 1:
            found.append(
                f"completed by two holders: {id}, deliveries {sorted({lease.deliveries for lease, _ in done})}"
            )
        if sum(lease_call.item.status == "settled" for _, lease_call in done) > 1:
            found.append(f"accepted as new more than once: {id}")
        if done and facts.stored.get(id, [None])[0] is not None and facts.stored[id][0].state != "completed":
            found.append(f"completion accepted, but {id} is {facts.stored[id][0].state}")
        after = [
            lease.deliveries for lease in leases if done and lease.deliveries > min(held.deliveries for held, _ in done)
        ]
        found += [f"delivered after completion: {id}, delivery {delivery}" for delivery in after]
    return found


def _accepted_outcomes(lease: Lease) -> list[str]:
    return sorted({lease_call.item.outcome for lease_call in lease.settlements() if lease_call.accepted})


def i5_one_holder(facts: Facts) -> list[str]:
    """Leases of a job never overlap, by the database's clock; a lease belongs to one claim."""
    found = []
    for id, leases in facts.by_job.items():
        found += [
            f"one lease, two claims: {id} delivery {lease.deliveries} {sorted(lease.claims)}"
            for lease in leases
            if len(lease.claims) > 1
        ]
        for earlier, later in pairwise(leases):
            if earlier.deliveries == later.deliveries:
                found.append(f"one delivery, two tokens: {id} delivery {later.deliveries}")
            elif not _was_available(facts, earlier, later):
                over = earlier.until - later.response_at
                found.append(
                    f"overlap by {over:.3f} s: {id}, deliveries {earlier.deliveries} and {later.deliveries} "
                    f"({earlier.proc}, {later.proc})"
                )
    return found


def _was_available(facts: Facts, earlier: Lease, later: Lease) -> bool:
    if later.response_at >= earlier.until - CLOCK_TOLERANCE or facts.clock_jumped(earlier.t0, later.t1):
        return True
    return any(lease_call.t0 <= later.t1 for lease_call in earlier.possible_requeues())


def i5_limits_are_kept(facts: Facts) -> list[str]:
    """Never more leases at once than max_running, nor two in a group with a limit of one.

    Only the time in which a lease was certainly held counts."""
    return _exceeded_limits(facts, LIMITED, MAX_RUNNING, by_group=False) + _exceeded_limits(
        facts, GROUPED, 1, by_group=True
    )


def _exceeded_limits(facts: Facts, queue: str, limit: int, *, by_group: bool) -> list[str]:
    steps: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for lease in facts.leases.values():
        if lease.queue == queue:
            end = min([lease.latest_end, *(lease_call.t0 for lease_call in lease.settlements())]) - CLOCK_TOLERANCE
            if end > lease.t1 and not facts.clock_jumped(lease.t0, end):
                steps[lease.group if by_group else ""] += [(lease.t1, 1, lease.job), (end, -1, lease.job)]
    found = []
    for group, changes in steps.items():
        held = 0
        for _, change, job in sorted(changes):
            held += change
            if held > limit:
                found.append(f"{held} leases at once in {queue} {group}, limit {limit}: {job}")
    return found


def i6_stale_tokens_are_rejected(facts: Facts) -> list[str]:
    """No call of an earlier lease is accepted after a response has delivered the job to another
    worker."""
    found = []
    for id, leases in facts.by_job.items():
        for earlier, later in pairwise(leases):
            if later.deliveries > earlier.deliveries:
                stale = [
                    lease_call
                    for lease_call in earlier.lease_calls
                    if lease_call.type == "ok"
                    and lease_call.t0 > later.t1
                    and lease_call.item.status in ("settled", "extended")
                ]
                found += [
                    f"stale {lease_call.item.outcome or lease_call.f} accepted: "
                    f"{id} delivery {earlier.deliveries} after {later.deliveries}"
                    for lease_call in stale
                ]
    return found


def i7_attempts_are_counted(facts: Facts) -> list[str]:
    """Each run costs one attempt, release and snooze none; never more than max_attempts."""
    found = [
        f"attempt {lease.attempt} of {lease.max_attempts}: {lease.job}"
        for lease in facts.leases.values()
        if not 1 <= lease.attempt <= lease.max_attempts
    ]
    for id, leases in facts.by_job.items():
        for earlier, later in pairwise(leases):
            if id in facts.replayed and later.attempt == 1:
                continue
            rise, span = later.attempt - earlier.attempt, later.deliveries - earlier.deliveries
            allowed = attempt_increments(facts, earlier) if span == 1 else set(range(-1, span + 1))
            if rise not in allowed:
                found.append(
                    f"attempt {earlier.attempt} -> {later.attempt} "
                    f"over deliveries {earlier.deliveries} -> {later.deliveries}: {id}"
                )
    return found


def attempt_increments(facts: Facts, lease: Lease) -> set[int]:
    """Returns the possible increments of the attempt at the next delivery, after the calls of
    this one."""
    response_item = [lease_call for lease_call in lease.settlements() if lease_call.accepted]
    unknown = [lease_call for lease_call in lease.settlements() if lease_call.type in ("info", "invoke")]
    sure = {rise for lease_call in response_item for rise in _attempt_increment(facts, lease, lease_call)}
    return sure or {1}.union(*(_attempt_increment(facts, lease, lease_call) for lease_call in unknown))


def _attempt_increment(facts: Facts, lease: Lease, lease_call: LeaseCall) -> set[int]:
    """Release and snooze refund the attempt, unless the lease expired first: that uses it."""
    if lease_call.item.outcome not in ("release", "snooze"):
        return {1}
    return (
        {0}
        if lease_call.t1 < lease.earliest_end - CLOCK_TOLERANCE and not facts.clock_jumped(lease.t0, lease_call.t1)
        else {0, 1}
    )
