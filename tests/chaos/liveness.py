"""Invariants I8 to I12: order, all jobs finish, unknown outcomes resolve, no early runs, counts.

Pure."""

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from uuid import UUID

from app.db.lanes import created_at
from tests.chaos.facts import CLOCK_TOLERANCE, Facts, Lease, LeaseCall
from tests.chaos.history import DEFERRED, Op
from tests.chaos.workload import FIFO, LIMITED, WORK

SETTLED = ("settled", "already_settled")
RESCUE_SECONDS = 3.0  # seconds after which an expired lease must have ended; brokers scan several times a second
PASS_OVER_SECONDS = 2.0  # seconds for which a job may be passed over without an active fault


@dataclass(frozen=True, order=True)
class WaitingJob:
    """A job that is claimable since `since`, its acknowledgement; it was first sent at `sent`."""

    rank: int  # lower ranks are claimed first
    since: float
    id: str
    sent: float

    def precedes(self, other: "WaitingJob", tolerance: float) -> bool:
        return self.rank < other.rank or (self.rank == other.rank and self.since + tolerance < other.sent)


def i8_order_is_kept(facts: Facts) -> list[str]:
    """Without an active fault, no job is passed over by one of lower priority or by a younger one.

    With one consumer never; with several consumers, not once it has been ready for two seconds."""
    tolerance = {WORK: PASS_OVER_SECONDS, LIMITED: PASS_OVER_SECONDS, FIFO: 0.0}
    return [violation for queue in tolerance for violation in _passed_over(facts, queue, tolerance[queue])]


def _passed_over(facts: Facts, queue: str, tolerance: float) -> list[str]:
    """Goes through first deliveries by time, with a heap of the jobs that should have been
    first."""
    first_leases = {
        id: leases[0] for id, leases in facts.by_job.items() if leases[0].deliveries == 1 and leases[0].queue == queue
    }
    known = {job.id: job for job in _waiting(facts, queue) if job.id in first_leases}
    todo = sorted(known.values(), key=lambda job: job.since, reverse=True)
    heap: list[WaitingJob] = []
    found = []
    for lease in sorted(first_leases.values(), key=lambda lease: lease.t0):
        while todo and todo[-1].since + tolerance < lease.t0:
            heapq.heappush(heap, todo.pop())
        while heap and first_leases[heap[0].id].t0 <= lease.t1:
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
    """Returns the acknowledged jobs without a delay."""
    found: dict[str, WaitingJob] = {}
    for calls in facts.enqueues.values():
        for invoke, result in calls:
            if result is not None and result.type == "ok":
                for request, response in zip(invoke.items, result.items, strict=True):
                    if request.queue == queue and not request.run_at and response.status == "created":
                        found.setdefault(
                            response.id, WaitingJob(-request.priority, result.t1, response.id, calls[0][0].t0)
                        )
    return list(found.values())


def i9_all_jobs_finish(facts: Facts) -> list[str]:
    """After the faults every job finishes in time, the statistics count each of them, and there
    were no deadlocks (docs/reliability/rules.md#r12)."""
    left = Counter(row.state for row in facts.final_state.stored if row.state not in ("completed", "dead", "cancelled"))
    found = [f"not finished in time: {dict(left)}"] if left or not facts.final_state.drained else []
    found += [f"deadlocks: {facts.final_state.deadlocks}"] if facts.final_state.deadlocks else []
    found += [f"jobs without coverage: {facts.final_state.uncovered}"] if facts.final_state.uncovered else []
    found += _unrescued_leases(facts)
    found += (
        [f"{facts.final_state.hung_brokers} brokers did not exit on SIGTERM"] if facts.final_state.hung_brokers else []
    )
    found += [
        f"a broker exited by itself or with an error: status {status}" for status in facts.final_state.failed_brokers
    ]
    table = Counter(row.state for row in facts.final_state.stored)
    table["ready"] += table.pop("pending", 0)
    wrong = {
        state: (response, table[state])
        for state, response in facts.final_state.stats.items()
        if response != table[state]
    }
    return found + [
        f"statistics report {response} {state}, the tables have {there}" for state, (response, there) in wrong.items()
    ]


def _unrescued_leases(facts: Facts) -> list[str]:
    """Finds leases that an operator saw long after they had expired, while no fault was active."""
    seen = [(op, item) for op in facts.ops if op.f == "leases" and op.type == "ok" for item in op.items]
    late = [(op, item, facts.database_time(op.t0) - item.lease_until) for op, item in seen]
    return [
        f"lease expired {ago:.1f} s ago and was not ended: {item.id} delivery {item.deliveries} in {item.queue}"
        for op, item, ago in late
        if ago > RESCUE_SECONDS and not facts.fault_active(op.t0 - ago, op.t1)
    ]


def i10_unknown_outcomes_resolve(facts: Facts) -> list[str]:
    """A retry reports the outcome of the first call, consistently; `not_done` means nothing was
    written."""
    return _claims_repeat(facts) + _settlements_repeat(facts) + _enqueues_resolve(facts)


def _claims_repeat(facts: Facts) -> list[str]:
    found = []
    for key, calls in facts.claims.items():
        known: list[Lease] = []
        for _, result in calls:
            if result is None or result.type != "ok" or result.code == DEFERRED:
                continue
            response = [facts.leases[item.id + item.token] for item in result.items]
            found += (
                [f"claim {key}: {violation}" for violation in _differences(facts, known, response, result)]
                if known
                else []
            )
            known = response or known
    return found


def _differences(facts: Facts, known: list[Lease], response: list[Lease], result: Op) -> list[str]:
    """A repeated claim returns the unexpired leases and no others; it claims anew only if all
    expired."""
    new = [lease for lease in response if lease not in known]
    if facts.clock_jumped(known[0].t0, result.t1):
        return []
    if new and any(result.db_at < lease.until - CLOCK_TOLERANCE for lease in known):
        return [f"repeated, but got other jobs: {[lease.job for lease in new]}"]
    if new:
        return []
    unexpired = [
        lease
        for lease in known
        if result.db_at < lease.until - CLOCK_TOLERANCE
        and not any(lease_call.t0 < result.t1 for lease_call in lease.settlements())
    ]
    return [f"repeated, but {lease.job} is missing" for lease in unexpired if lease not in response]


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
    """Compares the responses to one outcome of one lease, call after call.

    `again`: the job was delivered again, and the settlement record of the lease is gone."""
    found, before = [], ""
    for index, lease_call in enumerate(lease_calls):
        response = lease_call.item.status if lease_call.type == "ok" else lease_call.code
        if (
            response == "already_settled"
            and lease_calls[:index]
            and all(earlier.type == "fail" for earlier in lease_calls[:index])
        ):
            found.append("reported as not done, but it was done")
        if before == "lease_lost" and response in SETTLED:
            found.append("lost, then settled")
        if before in SETTLED and response == "lease_lost" and (lease_call.item.outcome == "complete" or not again):
            found.append("settled, then lost")
        before = response if response in (*SETTLED, "lease_lost") else before
    return found


def _enqueues_resolve(facts: Facts) -> list[str]:
    """Every call finally succeeds, and no job is older than the last response that nothing was
    done."""
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
    """Finds stored jobs whose calls, without an Idempotency-Key, were all `not_done` or rolled
    back."""
    sent = [(item.key, result) for op, result in facts.calls if op.f == "enqueue" and not op.key for item in op.items]
    unresolved = {key for key, result in sent if result is None or result.type != "fail"}
    kept = {row.key for row in facts.final_state.stored}
    return sorted(
        {f"reported as not done, but it was done: {key}" for key, _ in sent if key not in unresolved and key in kept}
    )


def _leading_rejections(calls: list[tuple[Op, Op | None]]) -> list[Op]:
    """Returns the responses that nothing was done, before any other response."""
    return [
        result
        for _, result in takewhile(lambda call: call[1] is not None and call[1].type == "fail", calls)
        if result is not None
    ]


def i11_nothing_runs_early(facts: Facts) -> list[str]:
    """No job is delivered before run_at (of producer, retry or snooze); a schedule run has one
    job."""
    enabled_nemeses = {
        response.id: facts.requested[key].run_at
        for key, response in facts.acknowledged.items()
        if response.status == "created"
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
        response = [
            lease_call.item.run_at
            for lease_call in lease.settlements()
            if lease_call.accepted and lease_call.item.run_at
        ]
        after = [later for later in leases if later.deliveries == lease.deliveries + 1]
        found += [
            f"early by {run_at - later.response_at:.3f} s: {later.job} delivery {later.deliveries}"
            for run_at in response
            for later in after
            if later.response_at < run_at - CLOCK_TOLERANCE and not facts.clock_jumped(lease.t0, later.t1)
        ]
    return found


def i12_counts_agree(facts: Facts) -> list[str]:
    """Jobs are completed only by a worker and stored only by a call; API and database agree on
    states."""
    done = {lease.job for lease in facts.leases.values() if lease.possibly_accepted("complete")}
    found = [
        f"completed without a completion: {row.id}"
        for row in facts.final_state.stored
        if row.state == "completed" and row.id not in done
    ]
    made = {response.id for response in facts.acknowledged.values()} | {
        row.id for row in facts.final_state.stored if row.schedule or row.replayed_from
    }
    found += [
        f"stored, but never reported: {row.id}"
        for row in facts.final_state.stored
        if row.id not in made and row.key not in facts.unresolved
    ]
    kept = {row.id: row.state for row in facts.final_state.stored}
    if facts.final_state.api_states:
        found += [
            f"the API reports {facts.final_state.api_states.get(id)} for {id}, the database {state}"
            for id, state in kept.items()
            if facts.final_state.api_states.get(id) != state
        ]
    return found
