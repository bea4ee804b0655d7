"""Invariants I8 to I12: order, an end for everything, unknown outcomes that resolve, no run too early, counts that agree. Pure."""

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from uuid import UUID

from app.db.lanes import created_at
from tests.chaos.facts import CLOCK_TOLERANCE, Facts, Lease, LeaseCall
from tests.chaos.history import DEFERRED, Op
from tests.chaos.workload import LIMITED, FIFO, WORK

SETTLED = ("settled", "already_settled")
RESCUE_SECONDS = 3.0  # seconds after which an expired lease has been ended; brokers check several times a second
PASS_OVER_SECONDS = 2.0  # seconds for which a job may be passed over outside faults (T of I8)


@dataclass(frozen=True, order=True)
class WaitingJob:
    """A job that is there to be claimed since `since`, when it was acknowledged; it was first sent at `sent`."""

    rank: int  # less is sooner
    since: float
    id: str
    sent: float

    def precedes(self, other: "WaitingJob", tolerance: float) -> bool:
        return self.rank < other.rank or (self.rank == other.rank and self.since + tolerance < other.sent)


def i8_order_is_kept(facts: Facts) -> list[str]:
    """While nothing is wrong, no job is passed over by one of less priority or by a younger one: where one consumer is alone, never;
    where there are several, not once it has been ready for two seconds."""
    tolerance = {WORK: PASS_OVER_SECONDS, LIMITED: PASS_OVER_SECONDS, FIFO: 0.0}
    return [violation for queue in tolerance for violation in _passed_over(facts, queue, tolerance[queue])]


def _passed_over(facts: Facts, queue: str, tolerance: float) -> list[str]:
    """Goes through first hand-outs by time, with a heap of those that ought to have gone first."""
    handed = {
        id: leases[0] for id, leases in facts.by_job.items() if leases[0].deliveries == 1 and leases[0].queue == queue
    }
    known = {job.id: job for job in _waiting(facts, queue) if job.id in handed}
    todo = sorted(known.values(), key=lambda job: job.since, reverse=True)
    heap: list[WaitingJob] = []
    found = []
    for lease in sorted(handed.values(), key=lambda lease: lease.t0):
        while todo and todo[-1].since + tolerance < lease.t0:
            heapq.heappush(heap, todo.pop())
        while heap and handed[heap[0].id].t0 <= lease.t1:
            heapq.heappop(heap)
        if (
            heap
            and lease.job in known
            and heap[0].precedes(known[lease.job], tolerance)
            and not facts.fault_active(heap[0].since, lease.t1)
        ):
            found.append(f"passed over: {heap[0].id} for {lease.t0 - heap[0].since:.1f} s by {lease.job} in {queue}")
    return found


def _waiting(facts: Facts, queue: str) -> list[WaitingJob]:
    """Jobs without a delay."""
    found: dict[str, WaitingJob] = {}
    for calls in facts.enqueues.values():
        for invoke, result in calls:
            if result is not None and result.type == "ok":
                for asked, told in zip(invoke.items, result.items, strict=True):
                    if asked.queue == queue and not asked.run_at and told.status == "created":
                        found.setdefault(told.id, WaitingJob(-asked.priority, result.t1, told.id, calls[0][0].t0))
    return list(found.values())


def i9_all_jobs_finish(facts: Facts) -> list[str]:
    """After healing, every job ends in time; the statistics know of each; and nobody stood in each other's way for good (R12)."""
    left = Counter(row.state for row in facts.final_state.stored if row.state not in ("completed", "dead", "cancelled"))
    found = [f"not finished in time: {dict(left)}"] if left or not facts.final_state.drained else []
    found += [f"deadlocks: {facts.final_state.deadlocks}"] if facts.final_state.deadlocks else []
    found += _unrescued_leases(facts)
    found += (
        [f"{facts.final_state.hung_brokers} brokers did not end on SIGTERM"] if facts.final_state.hung_brokers else []
    )
    table = Counter(row.state for row in facts.final_state.stored)
    table["ready"] += table.pop("parked", 0)
    wrong = {state: (told, table[state]) for state, told in facts.final_state.stats.items() if told != table[state]}
    return found + [
        f"statistics report {told} {state}, the tables have {there}" for state, (told, there) in wrong.items()
    ]


def _unrescued_leases(facts: Facts) -> list[str]:
    """Leases that an operator saw long after they had expired, while no fault was active."""
    looks = [(op, item) for op in facts.ops if op.f == "leases" and op.type == "ok" for item in op.items]
    late = [(op, item, facts.database_time(op.t0) - item.lease_until) for op, item in looks]
    return [
        f"lease expired {ago:.1f} s ago and was not ended: {item.id} delivery {item.deliveries} in {item.queue}"
        for op, item, ago in late
        if ago > RESCUE_SECONDS and not facts.fault_active(op.t0 - ago, op.t1)
    ]


def i10_unknown_outcomes_resolve(facts: Facts) -> list[str]:
    """A repeated call says what became of the first, and does not change its mind; what was told as not done was not."""
    return _claims_repeat(facts) + _settlements_repeat(facts) + _enqueues_resolve(facts)


def _claims_repeat(facts: Facts) -> list[str]:
    found = []
    for key, calls in facts.claims.items():
        known: list[Lease] = []
        for _, result in calls:
            if result is None or result.type != "ok" or result.code == DEFERRED:
                continue
            told = [facts.leases[item.id + item.token] for item in result.items]
            found += (
                [f"claim {key}: {violation}" for violation in _differences(facts, known, told, result)] if known else []
            )
            known = told or known
    return found


def _differences(facts: Facts, known: list[Lease], told: list[Lease], result: Op) -> list[str]:
    """Those that still live, and never others; a new claim only when all have run out."""
    new = [lease for lease in told if lease not in known]
    if facts.clock_jumped(known[0].t0, result.t1):
        return []
    if new and any(result.db_at < lease.until - CLOCK_TOLERANCE for lease in known):
        return [f"repeated, but got other jobs: {[lease.job for lease in new]}"]
    if new:
        return []
    living = [
        lease
        for lease in known
        if result.db_at < lease.until - CLOCK_TOLERANCE
        and not any(lease_call.t0 < result.t1 for lease_call in lease.settlements())
    ]
    return [f"repeated, but {lease.job} is missing" for lease in living if lease not in told]


def _settlements_repeat(facts: Facts) -> list[str]:
    found = []
    for lease in facts.leases.values():
        again = lease.job in facts.replayed or any(
            other.deliveries > lease.deliveries for other in facts.by_job[lease.job]
        )
        for outcome in sorted({lease_call.item.outcome for lease_call in lease.settlements()}):
            lease_calls = sorted(
                (lease_call for lease_call in lease.settlements() if lease_call.item.outcome == outcome),
                key=lambda lease_call: lease_call.t0,
            )
            found += [
                f"{violation}: {outcome} of {lease.job} delivery {lease.deliveries}"
                for violation in _contradictions(lease_calls, again=again)
            ]
    return found


def _contradictions(lease_calls: list[LeaseCall], *, again: bool) -> list[str]:
    """What was told of one outcome of one lease, call after call. `again`: the job was handed out once more, and the lease forgotten."""
    found, before = [], ""
    for index, lease_call in enumerate(lease_calls):
        told = lease_call.item.status if lease_call.type == "ok" else lease_call.code
        if (
            told == "already_settled"
            and lease_calls[:index]
            and all(earlier.type == "fail" for earlier in lease_calls[:index])
        ):
            found.append("reported as not done, but it was done")
        if before == "lease_lost" and told in SETTLED:
            found.append("lost, then settled")
        if before in SETTLED and told == "lease_lost" and (lease_call.item.outcome == "complete" or not again):
            found.append("settled, then lost")
        before = told if told in (*SETTLED, "lease_lost") else before
    return found


def _enqueues_resolve(facts: Facts) -> list[str]:
    """Every call is answered in the end; and no job is older than the last word that there was none."""
    found = _rejected_but_stored(facts)
    for key, calls in facts.enqueues.items():
        done = [(invoke, result) for invoke, result in calls if result is not None and result.type == "ok"]
        if not done:
            found.append(f"never resolved: {key}")
            continue
        refused = _leading_rejections(calls)
        if refused and not facts.clock_jumped(calls[0][0].t0, done[0][1].t1):
            made = [created_at(UUID(item.id)).timestamp() for item in done[0][1].items if item.status == "created"]
            early = facts.database_time(refused[-1].t1) - min(made, default=float("inf"))
            found += [f"reported as not done, but it was done: {key}, {early:.3f} s before"] if early > 0 else []
    return found


def _rejected_but_stored(facts: Facts) -> list[str]:
    """Without an Idempotency-Key: a job that was sent only in calls that were reported as not done, or rolled back, is not stored."""
    sent = [(item.key, result) for op, result in facts.calls if op.f == "enqueue" and not op.key for item in op.items]
    open_ones = {key for key, result in sent if result is None or result.type != "fail"}
    kept = {row.key for row in facts.final_state.stored}
    return sorted(
        {f"reported as not done, but it was done: {key}" for key, _ in sent if key not in open_ones and key in kept}
    )


def _leading_rejections(calls: list[tuple[Op, Op | None]]) -> list[Op]:
    """Answers that said that nothing was done, as long as there were only such."""
    return [
        result
        for _, result in takewhile(lambda call: call[1] is not None and call[1].type == "fail", calls)
        if result is not None
    ]


def i11_nothing_runs_early(facts: Facts) -> list[str]:
    """No job is handed out before its run_at, be it the producer's, a retry's or a snooze's; and one job per run of a schedule."""
    enabled_nemeses = {
        told.id: facts.requested[key].run_at for key, told in facts.acknowledged.items() if told.status == "created"
    }
    sent = {
        item.id: invoke.t0
        for invoke, result in reversed(facts.calls)
        if invoke.f == "enqueue" and result
        for item in result.items
    }
    found = []
    for id, leases in facts.by_job.items():
        found += [
            f"early by {enabled_nemeses[id] - lease.response_at:.3f} s: {id} delivery {lease.deliveries}"
            for lease in leases
            if lease.response_at < enabled_nemeses.get(id, 0) - CLOCK_TOLERANCE
            and not facts.clock_jumped(sent[id], lease.t1)
        ]
        found += _early_redeliveries(facts, leases)
    return found + [
        f"{row.jobs} jobs of {row.runs} runs: {row.schedule}"
        for row in facts.final_state.schedule_runs
        if row.jobs != row.runs
    ]


def _early_redeliveries(facts: Facts, leases: list[Lease]) -> list[str]:
    found = []
    for lease in leases:
        told = [
            lease_call.item.run_at
            for lease_call in lease.settlements()
            if lease_call.accepted and lease_call.item.run_at
        ]
        after = [later for later in leases if later.deliveries == lease.deliveries + 1]
        found += [
            f"early by {run_at - later.response_at:.3f} s: {later.job} delivery {later.deliveries}"
            for run_at in told
            for later in after
            if later.response_at < run_at - CLOCK_TOLERANCE and not facts.clock_jumped(lease.t0, later.t1)
        ]
    return found


def i12_counts_agree(facts: Facts) -> list[str]:
    """As many jobs as were acknowledged, completed only by somebody's word; the API tells of each the same as the database."""
    done = {lease.job for lease in facts.leases.values() if lease.possibly_accepted("complete")}
    found = [
        f"completed without a completion: {row.id}"
        for row in facts.final_state.stored
        if row.state == "completed" and row.id not in done
    ]
    made = {told.id for told in facts.acknowledged.values()} | {
        row.id for row in facts.final_state.stored if row.schedule or row.replayed_from
    }
    found += [
        f"stored, but never reported: {row.id}"
        for row in facts.final_state.stored
        if row.id not in made and row.key not in facts.unresolved
    ]
    kept = {row.id: row.state for row in facts.final_state.stored}
    if facts.final_state.told:
        found += [
            f"the API reports {facts.final_state.told.get(id)} for {id}, the database {state}"
            for id, state in kept.items()
            if facts.final_state.told.get(id) != state
        ]
    return found
