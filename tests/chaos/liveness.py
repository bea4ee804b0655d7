"""Invariants I8 to I12: order, an end for everything, unknown outcomes that resolve, no run too early, counts that agree. Pure."""

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from uuid import UUID

from app.db.lanes import created_at
from tests.chaos.facts import SLACK, Facts, Lease, Word
from tests.chaos.history import SENT_AWAY, Op
from tests.chaos.workload import LIMITED, LINE, WORK

SETTLED = ("settled", "already_settled")
TAKEN_BACK = 3.0  # seconds after which an expired lease has been ended; brokers check several times a second
WAITS = 2.0  # seconds for which a job may be passed over outside faults (T of I8)


@dataclass(frozen=True, order=True)
class Waiting:
    """A job that is there to be claimed since `since`, when it was acknowledged; it was first sent at `sent`."""

    rank: int  # less is sooner
    since: float
    id: str
    sent: float

    def goes_before(self, other: "Waiting", patience: float) -> bool:
        return self.rank < other.rank or (self.rank == other.rank and self.since + patience < other.sent)


def i8_order_is_kept(facts: Facts) -> list[str]:
    """While nothing is wrong, no job is passed over by one of less priority or by a younger one: where one consumer is alone, never;
    where there are several, not once it has been ready for two seconds."""
    patience = {WORK: WAITS, LIMITED: WAITS, LINE: 0.0}
    return [breach for queue in patience for breach in _passed_over(facts, queue, patience[queue])]


def _passed_over(facts: Facts, queue: str, patience: float) -> list[str]:
    """Goes through first hand-outs by time, with a heap of those that ought to have gone first."""
    handed = {
        id: leases[0] for id, leases in facts.by_job.items() if leases[0].deliveries == 1 and leases[0].queue == queue
    }
    known = {job.id: job for job in _waiting(facts, queue) if job.id in handed}
    todo = sorted(known.values(), key=lambda job: job.since, reverse=True)
    heap: list[Waiting] = []
    found = []
    for lease in sorted(handed.values(), key=lambda lease: lease.t0):
        while todo and todo[-1].since + patience < lease.t0:
            heapq.heappush(heap, todo.pop())
        while heap and handed[heap[0].id].t0 <= lease.t1:
            heapq.heappop(heap)
        if (
            heap
            and lease.job in known
            and heap[0].goes_before(known[lease.job], patience)
            and not facts.troubled(heap[0].since, lease.t1)
        ):
            found.append(f"passed over: {heap[0].id} for {lease.t0 - heap[0].since:.1f} s by {lease.job} in {queue}")
    return found


def _waiting(facts: Facts, queue: str) -> list[Waiting]:
    """Jobs without a delay."""
    found: dict[str, Waiting] = {}
    for calls in facts.enqueues.values():
        for invoke, result in calls:
            if result is not None and result.type == "ok":
                for asked, told in zip(invoke.items, result.items, strict=True):
                    if asked.queue == queue and not asked.run_at and told.status == "created":
                        found.setdefault(told.id, Waiting(-asked.priority, result.t1, told.id, calls[0][0].t0))
    return list(found.values())


def i9_all_comes_to_an_end(facts: Facts) -> list[str]:
    """After healing, every job ends in time; the statistics know of each; and nobody stood in each other's way for good (R12)."""
    left = Counter(row.state for row in facts.final.kept if row.state not in ("completed", "dead", "cancelled"))
    found = [f"not over in time: {dict(left)}"] if left or not facts.final.drained else []
    found += [f"deadlocks: {facts.final.deadlocks}"] if facts.final.deadlocks else []
    found += _forgotten_leases(facts)
    found += [f"{facts.final.stubborn} brokers did not end on SIGTERM"] if facts.final.stubborn else []
    table = Counter(row.state for row in facts.final.kept)
    table["ready"] += table.pop("parked", 0)
    wrong = {state: (told, table[state]) for state, told in facts.final.stats.items() if told != table[state]}
    return found + [f"stats say {told} {state}, the tables {there}" for state, (told, there) in wrong.items()]


def _forgotten_leases(facts: Facts) -> list[str]:
    """Leases that an operator saw long after they had expired, while no fault was active."""
    looks = [(op, item) for op in facts.ops if op.f == "leases" and op.type == "ok" for item in op.items]
    late = [(op, item, facts.database_time(op.t0) - item.lease_until) for op, item in looks]
    return [
        f"ran out {ago:.1f} s ago and was not taken back: {item.id} delivery {item.deliveries} in {item.queue}"
        for op, item, ago in late
        if ago > TAKEN_BACK and not facts.troubled(op.t0 - ago, op.t1)
    ]


def i10_unknown_outcomes_resolve(facts: Facts) -> list[str]:
    """A repeated call says what became of the first, and does not change its mind; what was told as not done was not."""
    return _claims_repeat(facts) + _settlements_repeat(facts) + _enqueues_resolve(facts)


def _claims_repeat(facts: Facts) -> list[str]:
    found = []
    for key, calls in facts.claims.items():
        known: list[Lease] = []
        for _, result in calls:
            if result is None or result.type != "ok" or result.code == SENT_AWAY:
                continue
            told = [facts.leases[item.id + item.token] for item in result.items]
            found += [f"claim {key}: {breach}" for breach in _differs(facts, known, told, result)] if known else []
            known = told or known
    return found


def _differs(facts: Facts, known: list[Lease], told: list[Lease], result: Op) -> list[str]:
    """Those that still live, and never others; a new claim only when all have run out."""
    new = [lease for lease in told if lease not in known]
    if facts.jumped(known[0].t0, result.t1):
        return []
    if new and any(result.db_at < lease.until - SLACK for lease in known):
        return [f"repeated, and got others: {[lease.job for lease in new]}"]
    if new:
        return []
    living = [
        lease
        for lease in known
        if result.db_at < lease.until - SLACK and not any(word.t0 < result.t1 for word in lease.settlements())
    ]
    return [f"repeated, and {lease.job} is missing" for lease in living if lease not in told]


def _settlements_repeat(facts: Facts) -> list[str]:
    found = []
    for lease in facts.leases.values():
        again = lease.job in facts.replayed or any(
            other.deliveries > lease.deliveries for other in facts.by_job[lease.job]
        )
        for outcome in sorted({word.item.outcome for word in lease.settlements()}):
            words = sorted(
                (word for word in lease.settlements() if word.item.outcome == outcome), key=lambda word: word.t0
            )
            found += [
                f"{breach}: {outcome} of {lease.job} delivery {lease.deliveries}"
                for breach in _wavers(words, again=again)
            ]
    return found


def _wavers(words: list[Word], *, again: bool) -> list[str]:
    """What was told of one outcome of one lease, call after call. `again`: the job was handed out once more, and the lease forgotten."""
    found, before = [], ""
    for place, word in enumerate(words):
        told = word.item.status if word.type == "ok" else word.code
        if told == "already_settled" and words[:place] and all(earlier.type == "fail" for earlier in words[:place]):
            found.append("reported as not done, but it was done")
        if before == "lease_lost" and told in SETTLED:
            found.append("lost, then settled")
        if before in SETTLED and told == "lease_lost" and (word.item.outcome == "complete" or not again):
            found.append("settled, then lost")
        before = told if told in (*SETTLED, "lease_lost") else before
    return found


def _enqueues_resolve(facts: Facts) -> list[str]:
    """Every call is answered in the end; and no job is older than the last word that there was none."""
    found = _refused_and_there(facts)
    for key, calls in facts.enqueues.items():
        done = [(invoke, result) for invoke, result in calls if result is not None and result.type == "ok"]
        if not done:
            found.append(f"never resolved: {key}")
            continue
        refused = _refused_first(calls)
        if refused and not facts.jumped(calls[0][0].t0, done[0][1].t1):
            made = [created_at(UUID(item.id)).timestamp() for item in done[0][1].items if item.status == "created"]
            early = facts.database_time(refused[-1].t1) - min(made, default=float("inf"))
            found += [f"reported as not done, but it was done: {key}, {early:.3f} s before"] if early > 0 else []
    return found


def _refused_and_there(facts: Facts) -> list[str]:
    """Without an Idempotency-Key: a job that was sent only in calls that were reported as not done, or rolled back, is not stored."""
    sent = [(item.key, result) for op, result in facts.calls if op.f == "enqueue" and not op.key for item in op.items]
    open_ones = {key for key, result in sent if result is None or result.type != "fail"}
    kept = {row.key for row in facts.final.kept}
    return sorted(
        {f"reported as not done, but it was done: {key}" for key, _ in sent if key not in open_ones and key in kept}
    )


def _refused_first(calls: list[tuple[Op, Op | None]]) -> list[Op]:
    """Answers that said that nothing was done, as long as there were only such."""
    return [
        result
        for _, result in takewhile(lambda call: call[1] is not None and call[1].type == "fail", calls)
        if result is not None
    ]


def i11_nothing_runs_early(facts: Facts) -> list[str]:
    """No job is handed out before its run_at, be it the producer's, a retry's or a snooze's; and one job per run of a schedule."""
    wanted = {told.id: facts.asked[key].run_at for key, told in facts.acked.items() if told.status == "created"}
    sent = {
        item.id: invoke.t0
        for invoke, result in reversed(facts.calls)
        if invoke.f == "enqueue" and result
        for item in result.items
    }
    found = []
    for id, leases in facts.by_job.items():
        found += [
            f"early by {wanted[id] - lease.told_at:.3f} s: {id} delivery {lease.deliveries}"
            for lease in leases
            if lease.told_at < wanted.get(id, 0) - SLACK and not facts.jumped(sent[id], lease.t1)
        ]
        found += _early_again(facts, leases)
    return found + [
        f"{row.jobs} jobs of {row.runs} runs: {row.schedule}" for row in facts.final.ticks if row.jobs != row.runs
    ]


def _early_again(facts: Facts, leases: list[Lease]) -> list[str]:
    found = []
    for lease in leases:
        told = [word.item.run_at for word in lease.settlements() if word.accepted and word.item.run_at]
        after = [later for later in leases if later.deliveries == lease.deliveries + 1]
        found += [
            f"early by {run_at - later.told_at:.3f} s: {later.job} delivery {later.deliveries}"
            for run_at in told
            for later in after
            if later.told_at < run_at - SLACK and not facts.jumped(lease.t0, later.t1)
        ]
    return found


def i12_counts_agree(facts: Facts) -> list[str]:
    """As many jobs as were acknowledged, completed only by somebody's word; the API tells of each the same as the database."""
    done = {lease.job for lease in facts.leases.values() if lease.heard("complete")}
    found = [
        f"completed without a completion: {row.id}"
        for row in facts.final.kept
        if row.state == "completed" and row.id not in done
    ]
    made = {told.id for told in facts.acked.values()} | {
        row.id for row in facts.final.kept if row.schedule or row.replayed_from
    }
    found += [
        f"stored, but never reported: {row.id}"
        for row in facts.final.kept
        if row.id not in made and row.key not in facts.unsure
    ]
    kept = {row.id: row.state for row in facts.final.kept}
    if facts.final.told:
        found += [
            f"the API says {facts.final.told.get(id)} of {id}, the database {state}"
            for id, state in kept.items()
            if facts.final.told.get(id) != state
        ]
    return found
