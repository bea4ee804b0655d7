"""The history, indexed by key, lease and settlement, for the checks of the invariants. Pure."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from tests.chaos.final_state import FinalState, StoredJob
from tests.chaos.history import Item, Op
from tests.chaos.options import Options
from tests.chaos.transitions import transitions

CLOCK_TOLERANCE = 0.25  # seconds by which two brokers may differ about the database's time: each reads it once a second
FAULT_AFTERMATH = 2.0  # seconds after a fault in which it may still have effects


@dataclass(frozen=True)
class Fault:
    name: str
    began: float
    healed: float
    brokers: list[int]  # numbers of the affected brokers


@dataclass
class LeaseCall:
    """A settlement or heartbeat of a lease, with its result.

    `type` is invoke if the client died in it."""

    f: str
    type: str
    t0: float
    t1: float
    item: Item  # of the request, completed by the response
    code: str = ""

    @property
    def accepted(self) -> bool:
        return self.type == "ok" and self.item.status in ("settled", "already_settled", "extended")

    @property
    def unknown(self) -> bool:
        return self.type in ("info", "invoke")


@dataclass
class Lease:
    """One delivery, as its worker saw it."""

    job: str
    token: str
    deliveries: int
    attempt: int
    max_attempts: int
    queue: str
    group: str
    db_at: float  # start of the lease; the broker reads it before the statement waits for a connection
    response_at: float  # read after the statement: the delivery was in between
    until: float  # latest reported end, by the database's clock
    latest_end: float  # the same by the machine's clock, at the latest
    earliest_end: float  # and at the earliest: a response may be read long after it was written
    t0: float  # of the first response with the lease
    t1: float
    proc: str
    # Idempotency-Keys of the claims that returned the lease; for claims without a key their calls.
    claims: set[str] = field(default_factory=set)
    lease_calls: list[LeaseCall] = field(default_factory=list)

    def settlements(self) -> list[LeaseCall]:
        return [lease_call for lease_call in self.lease_calls if lease_call.f == "settle"]

    def possible_requeues(self) -> list[LeaseCall]:
        """Settlements after which the job may be delivered again, including unknown outcomes."""
        return self.possibly_accepted("fail", "snooze", "release")

    def possibly_accepted(self, *outcomes: str) -> list[LeaseCall]:
        """Settlements that were accepted, or whose outcome is unknown."""
        return [
            lease_call
            for lease_call in self.settlements()
            if lease_call.item.outcome in outcomes and (lease_call.accepted or lease_call.unknown)
        ]


class Facts:
    def __init__(self, ops: list[Op], faults: list[Fault], final_state: FinalState, options: Options) -> None:
        self.ops = ops
        self.faults = faults
        self.final_state = final_state
        self.options = options
        self.stored: dict[str, list[StoredJob]] = defaultdict(list)
        for row in final_state.stored:
            self.stored[row.id].append(row)
        results = {op.call: op for op in ops if op.type != "invoke"}
        self.calls = [(op, results.get(op.call)) for op in ops if op.type == "invoke"]
        self.calls.sort(key=lambda call: call[0].t0)
        self.began = self.calls[0][0].t0 if self.calls else 0.0
        self.enqueues = self._by_key("enqueue")
        self.claims = self._by_key("claim")
        self.requested = {item.key: item for op, _ in self.calls if op.f == "enqueue" for item in op.items}
        self.cancels = self._requested_cancels()
        self.acknowledged: dict[str, Item] = {
            item.key: item for op in ops if op.f == "enqueue" and op.type == "ok" for item in op.items
        }
        self.replayed = {item.id for op, _ in self.calls if op.f == "replay" for item in op.items}
        self.purged = {
            name for op, _ in self.calls if op.f == "purge" for item in op.items for name in (item.key, item.id)
        }
        self.purged_queues = {op.queue for op, _ in self.calls if op.f == "purge" and not op.items}
        self.moved = {row.replayed_from: row.id for row in final_state.stored if row.replayed_from}
        self.purges = {
            queue: [call for call in self.calls if call[0].f == "purge" and call[0].queue == queue]
            for queue in self.purged_queues
        }
        self.unresolved = self._unresolved_keys()
        self._items_of: dict[str, dict[str, list[tuple[Op, Op | None]]]] = {}
        self.leases: dict[str, Lease] = {}
        self.by_job: dict[str, list[Lease]] = defaultdict(list)
        self.transitions = transitions(final_state.audit_log)
        self._clock = [(row.at, row.clock_offset) for row in final_state.audit_log if row.source == "clock"]
        self._index_leases()
        self._index_lease_calls()

    def _by_key(self, f: str) -> dict[str, list[tuple[Op, Op | None]]]:
        """Returns calls with their results by Idempotency-Key, in the order of the calls."""
        found: dict[str, list[tuple[Op, Op | None]]] = defaultdict(list)
        for invoke, result in self.calls:
            if invoke.f == f and invoke.key:
                found[invoke.key].append((invoke, result))
        return found

    def _unresolved_keys(self) -> set[str]:
        """Returns jobs sent without an Idempotency-Key in calls of unknown outcome: stored once
        or never."""
        keyless = [(op, result) for op, result in self.calls if op.f == "enqueue" and not op.key]
        return {item.key for op, result in keyless if result is None or result.type == "info" for item in op.items}

    def may_be_removed(self, key: str) -> bool:
        """Returns whether a call may have removed the job: a dead letter, or a job of a purged queue.

        The id counts too: a unique key may have been answered with a job that has another key.
        """
        acknowledged = self.acknowledged.get(key)
        by_id = acknowledged is not None and acknowledged.id in self.purged
        in_purged_queue = key in self.requested and self.requested[key].queue in self.purged_queues
        return by_id or key in self.purged or in_purged_queue

    def _requested_cancels(self) -> dict[str, list[float]]:
        """Returns the start times of the cancels that were not rejected, by job."""
        found: dict[str, list[float]] = defaultdict(list)
        for invoke, result in self.calls:
            if invoke.f == "cancel" and (result is None or result.type != "fail"):
                for item in invoke.items:
                    found[item.id].append(invoke.t0)
        return found

    def items_of(self, f: str) -> dict[str, list[tuple[Op, Op | None]]]:
        """Returns calls of one operation by the jobs that they name."""
        if f not in self._items_of:
            found: dict[str, list[tuple[Op, Op | None]]] = defaultdict(list)
            for invoke, result in self.calls:
                for item in invoke.items if invoke.f == f else ():
                    found[item.id].append((invoke, result))
            self._items_of[f] = found
        return self._items_of[f]

    def request_items(self, result: Op) -> list[Item]:
        return next((invoke.items for invoke, possibly_accepted in self.calls if possibly_accepted is result), [])

    def claimed_since(self, lease: Lease) -> float:
        """Returns the start of the first call that may have created the lease, which a retry
        returns too."""
        return min((call[0].t0 for key in lease.claims for call in self.claims.get(key, [])), default=lease.t0)

    def _index_leases(self) -> None:
        claims = [op for op in self.ops if op.f == "claim" and op.type == "ok"]
        for op in sorted(claims, key=lambda op: op.t1):
            for item in op.items:
                self._index_lease(op, item)
        for leases in self.by_job.values():
            leases.sort(key=lambda lease: (lease.deliveries, lease.t1))

    def _index_lease(self, op: Op, item: Item) -> None:
        lease = self.leases.get(item.id + item.token)
        if lease is None:
            lease = Lease(
                job=item.id,
                token=item.token,
                deliveries=item.deliveries,
                attempt=item.attempt,
                max_attempts=item.max_attempts,
                queue=item.queue,
                group=item.group,
                db_at=item.db_at,
                response_at=op.db_at or item.db_at,
                until=item.lease_until,
                latest_end=op.t1 + item.lease_until - (op.db_at or op.t1),
                earliest_end=op.t0 + item.lease_until - (op.db_at or op.t0),
                t0=op.t0,
                t1=op.t1,
                proc=op.proc,
            )
            self.leases[item.id + item.token] = lease
            self.by_job[item.id].append(lease)
        lease.claims.add(op.key or op.call)

    def _index_lease_calls(self) -> None:
        for invoke, result in self.calls:
            if invoke.f in ("settle", "heartbeat"):
                items = result.items if result is not None and result.items else invoke.items
                for item in items:
                    self._index_lease_call(invoke, result, item)

    def _index_lease_call(self, invoke: Op, result: Op | None, item: Item) -> None:
        lease = self.leases.get(item.id + item.token)
        if lease is None:
            return
        kind, t1, code = (result.type, result.t1, result.code) if result is not None else ("invoke", float("inf"), "")
        lease.lease_calls.append(LeaseCall(invoke.f, kind, invoke.t0, t1, item, code))
        if result is not None and item.status == "extended" and item.lease_until > lease.until:
            lease.until, lease.latest_end = item.lease_until, result.t1 + item.lease_until - (result.db_at or result.t1)
            lease.earliest_end = invoke.t0 + item.lease_until - (result.db_at or invoke.t0)

    # Clocks

    def database_time(self, at: float) -> float:
        """Converts a time of the machine's clock to the database's clock."""
        index = bisect_right(self._clock, at, key=lambda change: change[0])
        return at + (self._clock[index - 1][1] if index else 0.0)

    # Faults

    def clock_jumped(self, since: float, until: float) -> bool:
        """Returns whether the database's clock jumped in between; then its times are not
        comparable.

        Brokers read the database's clock once a second."""
        return any(
            "clock" in fault.name and fault.began <= until and since <= fault.healed + FAULT_AFTERMATH
            for fault in self.faults
        )

    def fault_active(self, since: float, until: float) -> bool:
        return any(fault.began <= until and since <= fault.healed + FAULT_AFTERMATH for fault in self.faults)
