"""Invariants I1 to I7: nothing lost, nothing from nowhere, one job per key, one completion, one holder, the fence, the attempts. Pure.

Each takes the facts and returns a sentence per breach.
"""

from collections import Counter, defaultdict
from itertools import pairwise

from tests.chaos.facts import SLACK, Facts, Lease, Word
from tests.chaos.final import Kept
from tests.chaos.workload import GROUPED, LIMITED, MAX_RUNNING

TERMINAL = ("completed", "dead", "cancelled")


def i1_nothing_acknowledged_is_lost(facts: Facts) -> list[str]:
    """An acknowledged job is done or dead-lettered, or cancelled by somebody who asked for it."""
    found = []
    for key, told in facts.acked.items():
        rows = facts.kept.get(told.id, [])
        if not rows:
            if not facts.may_be_gone(key) and told.id not in facts.moved:
                found.append(f"lost: {key} was acknowledged as {told.id}, and there is no such job")
        elif rows[0].state not in TERMINAL:
            found.append(f"unfinished: {key} ({told.id}) is {rows[0].state} {rows[0].reason}")
        elif rows[0].state == "cancelled" and told.id not in facts.cancels and not _lost_a_parent(facts, key, rows[0]):
            found.append(f"cancelled without a request: {key} ({told.id})")
    return found


def _lost_a_parent(facts: Facts, key: str, row: Kept) -> bool:
    """Whether one of its parents has failed or was cancelled, also if it was replayed later."""
    parents = [facts.acked[parent].id for parent in facts.asked[key].depends_on if parent in facts.acked]
    failed = [
        id
        for id in parents
        if facts.kept.get(id, [None])[0] is None or facts.kept[id][0].state in ("dead", "cancelled")
    ]
    return row.reason == "dependency_failed" and bool(failed or facts.replayed.intersection(parents))


def i2_nothing_comes_from_nowhere(facts: Facts) -> list[str]:
    """Every job that is handed out or kept was sent by somebody, as it is."""
    ticks = {row.id for row in facts.final.kept if row.schedule}
    found = [
        f"kept, but never sent: {row.id} key {row.key!r}"
        for row in facts.final.kept
        if row.key not in facts.asked and not row.schedule
    ]
    for op in facts.ops:
        if op.f != "claim" or op.type != "ok":
            continue
        for item in op.items:
            sent = facts.asked.get(item.key)
            if sent is None and item.id not in ticks:
                found.append(f"handed out, but never sent: {item.id} key {item.key!r}")
            elif sent is not None and sent.payload != item.payload:
                found.append(f"another payload than was sent: {item.id} key {item.key}")
    return found


def i3_one_job_per_key(facts: Facts) -> list[str]:
    """All answers to one Idempotency-Key name the same jobs; no job is there twice; a batch is stored whole or not at all."""
    found = []
    for key, calls in facts.enqueues.items():
        answers = {
            tuple(item.id for item in result.items) for _, result in calls if result is not None and result.type == "ok"
        }
        if len(answers) > 1:
            found.append(f"one key, several answers: {key} {sorted(answers)[:2]}")
    copies = Counter(row.key for row in facts.final.kept if row.key)
    found += [f"stored {count} times: {key}" for key, count in copies.items() if count > 1]
    found += [f"{len(rows)} rows with id {id}" for id, rows in facts.kept.items() if len(rows) > 1]
    return found + _half_batches(facts, copies) + _unique_twice(facts)


def _half_batches(facts: Facts, copies: Counter[str]) -> list[str]:
    """With or without an Idempotency-Key, all jobs of a call are stored, or none. Jobs that may have been removed do not count."""
    found = {}
    for op, _ in facts.calls:
        if op.f == "enqueue":
            sent = [item.key for item in op.items if not item.unique and not facts.may_be_gone(item.key)]
            stored = sum(key in copies for key in sent)
            if 0 < stored < len(sent):
                found[sent[0]] = (
                    f"half a batch: {stored} of {len(sent)} jobs of {op.key or 'a call without a key: ' + sent[0]}"
                )
    return list(found.values())


def _unique_twice(facts: Facts) -> list[str]:
    """A second job with a unique key, made while the first was surely still there: acknowledged, and nobody had begun to end it."""
    holders: dict[str, list[tuple[float, float, str]]] = defaultdict(
        list
    )  # key -> (acknowledged, first word of an end, id)
    found = []
    for invoke, result in facts.calls:
        if invoke.f != "enqueue" or result is None or result.type != "ok":
            continue
        for asked, told in zip(invoke.items, result.items, strict=True):
            if asked.unique and told.status == "created":
                found += [
                    f"unique key {asked.unique} twice: {id} and {told.id}"
                    for t1, end, id in holders[asked.unique]
                    if id != told.id and t1 < invoke.t0 and end > result.t1 and _made_by(facts, asked.key, invoke.t0)
                ]
                holders[asked.unique].append((result.t1, _first_end(facts, told.id), told.id))
    return found


def _made_by(facts: Facts, key: str, t0: float) -> bool:
    """Whether the call that began then can be the one that made the job: no earlier one with its Idempotency-Key had begun."""
    return not any(
        op.t0 < t0 and any(item.key == key for item in op.items)
        for op, _ in facts.enqueues.get(key.rpartition("-")[0], [])
    )


def _first_end(facts: Facts, id: str) -> float:
    """Cancelled at an unknown time counts as at once; a dead worker's job may have been completed or buried by expiry from its lease on."""
    if id in facts.cancels:
        return 0.0
    return min(
        (min([lease.over, *(word.t0 for word in lease.settlements())]) for lease in facts.by_job.get(id, [])),
        default=0.0,
    )


def i4_one_completion(facts: Facts) -> list[str]:
    """At most one completion is accepted, it stands, and nothing is handed out after it; a lease ends in one way."""
    found = [
        f"settled in two ways: {lease.job}, {ways}" for lease in facts.leases.values() if len(ways := _ways(lease)) > 1
    ]
    for id, leases in facts.by_job.items():
        done = [
            (lease, word)
            for lease in leases
            for word in lease.settlements()
            if word.accepted and word.item.outcome == "complete"
        ]
        if len({lease.token for lease, _ in done}) > 1:
            found.append(
                f"completed by two holders: {id}, deliveries {sorted({lease.deliveries for lease, _ in done})}"
            )
        if sum(word.item.status == "settled" for _, word in done) > 1:
            found.append(f"accepted as new more than once: {id}")
        if done and facts.kept.get(id, [None])[0] is not None and facts.kept[id][0].state != "completed":
            found.append(f"completion accepted, but {id} is {facts.kept[id][0].state}")
        after = [
            lease.deliveries for lease in leases if done and lease.deliveries > min(held.deliveries for held, _ in done)
        ]
        found += [f"handed out after completion: {id}, delivery {delivery}" for delivery in after]
    return found


def _ways(lease: Lease) -> list[str]:
    return sorted({word.item.outcome for word in lease.settlements() if word.accepted})


def i5_one_holder(facts: Facts) -> list[str]:
    """Leases of a job never overlap, by the database's time; a lease is in the hands of one claim."""
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
            elif not _was_free(facts, earlier, later):
                over = earlier.until - later.told_at
                found.append(
                    f"overlap by {over:.3f} s: {id}, deliveries {earlier.deliveries} and {later.deliveries} ({earlier.proc}, {later.proc})"
                )
    return found


def _was_free(facts: Facts, earlier: Lease, later: Lease) -> bool:
    if later.told_at >= earlier.until - SLACK or facts.jumped(earlier.t0, later.t1):
        return True
    return any(word.t0 <= later.t1 for word in earlier.given_back())


def i5_limits_hold(facts: Facts) -> list[str]:
    """Never more leases at once than max_running, nor two of a group that may have one. Counted only while surely held."""
    return _over(facts, LIMITED, MAX_RUNNING, by_group=False) + _over(facts, GROUPED, 1, by_group=True)


def _over(facts: Facts, queue: str, most: int, *, by_group: bool) -> list[str]:
    steps: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for lease in facts.leases.values():
        if lease.queue == queue:
            end = min([lease.over, *(word.t0 for word in lease.settlements())]) - SLACK
            if end > lease.t1 and not facts.jumped(lease.t0, end):
                steps[lease.group if by_group else ""] += [(lease.t1, 1, lease.job), (end, -1, lease.job)]
    found = []
    for group, changes in steps.items():
        held = 0
        for _, change, job in sorted(changes):
            held += change
            if held > most:
                found.append(f"{held} leases at once in {queue} {group}, where {most} may be: {job}")
    return found


def i6_the_fence_holds(facts: Facts) -> list[str]:
    """Nothing that a holder says is accepted once somebody else has been told that the job is his."""
    found = []
    for id, leases in facts.by_job.items():
        for earlier, later in pairwise(leases):
            if later.deliveries > earlier.deliveries:
                stale = [
                    word
                    for word in earlier.words
                    if word.type == "ok" and word.t0 > later.t1 and word.item.status in ("settled", "extended")
                ]
                found += [
                    f"stale {word.item.outcome or word.f} accepted: {id} delivery {earlier.deliveries} after {later.deliveries}"
                    for word in stale
                ]
    return found


def i7_attempts_are_counted(facts: Facts) -> list[str]:
    """One more for each execution, none for release and snooze, never beyond the most."""
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
            allowed = rises(facts, earlier) if span == 1 else set(range(-1, span + 1))
            if rise not in allowed:
                found.append(
                    f"attempt {earlier.attempt} -> {later.attempt} over deliveries {earlier.deliveries} -> {later.deliveries}: {id}"
                )
    return found


def rises(facts: Facts, lease: Lease) -> set[int]:
    """By what the attempt may differ at the next delivery, after what was said of this one."""
    told = [word for word in lease.settlements() if word.accepted]
    unknown = [word for word in lease.settlements() if word.type in ("info", "invoke")]
    sure = {rise for word in told for rise in _rise(facts, lease, word)}
    return sure or {1}.union(*(_rise(facts, lease, word) for word in unknown))


def _rise(facts: Facts, lease: Lease, word: Word) -> set[int]:
    """Release and snooze give the attempt back, unless expiry has come first: that spends it."""
    if word.item.outcome not in ("release", "snooze"):
        return {1}
    return {0} if word.t1 < lease.soonest - SLACK and not facts.jumped(lease.t0, word.t1) else {0, 1}
