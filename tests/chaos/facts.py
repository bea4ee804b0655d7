"""The history, sorted by what it is about: keys, leases, settlements. What the invariants are asked of. Pure."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from tests.chaos.final import Final, Kept
from tests.chaos.history import Item, Op
from tests.chaos.options import Options
from tests.chaos.transitions import transitions

SLACK = 0.25  # seconds that two brokers may differ about the database's time: each asks once a second how late it is
GRACE = 2.0  # seconds after a fault in which it may still be felt


@dataclass(frozen=True)
class Fault:
    name: str
    began: float
    healed: float
    hit: list[int]


@dataclass
class Word:
    """What was said about a lease (a settlement, a heartbeat), and what was told. `type` is invoke if the client died over it."""

    f: str
    type: str
    t0: float
    t1: float
    item: Item  # as asked, with what was told
    code: str = ""

    @property
    def accepted(self) -> bool:
        return self.type == "ok" and self.item.status in ("settled", "already_settled", "extended")

    @property
    def unknown(self) -> bool:
        return self.type in ("info", "invoke")


@dataclass
class Lease:
    """One delivery, as its holder saw it."""

    job: str
    token: str
    deliveries: int
    attempt: int
    max_attempts: int
    queue: str
    group: str
    db_at: float  # when it began; that is read before the statement waits for a connection,
    told_at: float  # and this after it has run: the hand-out was in between
    until: float  # the latest that anybody was told, by the database's clock
    over: float  # the same by the machine's, at the latest
    soonest: float  # and at the soonest: an answer may have been read long after it was written
    t0: float  # of the first answer that told of it
    t1: float
    proc: str
    claims: set[str] = field(default_factory=set)  # the keys (or calls, for claims without one) that it was handed out to
    words: list[Word] = field(default_factory=list)

    def settlements(self) -> list[Word]:
        return [word for word in self.words if word.f == "settle"]

    def given_back(self) -> list[Word]:
        """Settlements after which the job may be handed out again, those that nobody knows of included."""
        return self.heard("fail", "snooze", "release")

    def heard(self, *outcomes: str) -> list[Word]:
        """Settlements that were accepted, or whose outcome is unknown."""
        return [word for word in self.settlements() if word.item.outcome in outcomes and (word.accepted or word.unknown)]


class Facts:
    def __init__(self, ops: list[Op], faults: list[Fault], final: Final, options: Options) -> None:
        self.ops = ops
        self.faults = faults
        self.final = final
        self.options = options
        self.kept: dict[str, list[Kept]] = defaultdict(list)
        for row in final.kept:
            self.kept[row.id].append(row)
        results = {op.call: op for op in ops if op.type != "invoke"}
        self.calls = [(op, results.get(op.call)) for op in ops if op.type == "invoke"]
        self.calls.sort(key=lambda call: call[0].t0)
        self.began = self.calls[0][0].t0 if self.calls else 0.0
        self.enqueues = self._by_key("enqueue")
        self.claims = self._by_key("claim")
        self.asked = {item.key: item for op, _ in self.calls if op.f == "enqueue" for item in op.items}
        self.cancels = self._asked_cancels()
        self.acked: dict[str, Item] = {item.key: item for op in ops if op.f == "enqueue" and op.type == "ok" for item in op.items}
        self.replayed = {item.id for op, _ in self.calls if op.f == "replay" for item in op.items}
        self.purged = {name for op, _ in self.calls if op.f == "purge" for item in op.items for name in (item.key, item.id)}
        self.purged_queues = {op.queue for op, _ in self.calls if op.f == "purge" and not op.items}
        self.moved = {row.replayed_from: row.id for row in final.kept if row.replayed_from}
        self.purges = {
            queue: [call for call in self.calls if call[0].f == "purge" and call[0].queue == queue] for queue in self.purged_queues
        }
        self.unsure = self._unsure()
        self._items_of: dict[str, dict[str, list[tuple[Op, Op | None]]]] = {}
        self.leases: dict[str, Lease] = {}
        self.by_job: dict[str, list[Lease]] = defaultdict(list)
        self.transitions = transitions(final.witness)
        self._clock = [(row.at, row.by) for row in final.witness if row.place == "clock"]
        self._hear_of_leases()
        self._hear_words()

    def _by_key(self, f: str) -> dict[str, list[tuple[Op, Op | None]]]:
        """Calls with their results, by Idempotency-Key, in the order in which they were made."""
        found: dict[str, list[tuple[Op, Op | None]]] = defaultdict(list)
        for invoke, result in self.calls:
            if invoke.f == f and invoke.key:
                found[invoke.key].append((invoke, result))
        return found

    def _unsure(self) -> set[str]:
        """Jobs sent without an Idempotency-Key in calls of unknown outcome: each is stored once or not at all."""
        keyless = [(op, result) for op, result in self.calls if op.f == "enqueue" and not op.key]
        return {item.key for op, result in keyless if result is None or result.type == "info" for item in op.items}

    def may_be_gone(self, key: str) -> bool:
        """Whether a call may have removed the job: as a dead letter, or while it waited in a queue that was purged. A unique key may have
        been answered with a job that has another key, so the id counts too."""
        acked = self.acked.get(key)
        by_id = acked is not None and acked.id in self.purged
        return by_id or key in self.purged or (key in self.asked and self.asked[key].queue in self.purged_queues)

    def _asked_cancels(self) -> dict[str, list[float]]:
        """By job: when each cancel began that was not refused."""
        found: dict[str, list[float]] = defaultdict(list)
        for invoke, result in self.calls:
            if invoke.f == "cancel" and (result is None or result.type != "fail"):
                for item in invoke.items:
                    found[item.id].append(invoke.t0)
        return found

    def items_of(self, f: str) -> dict[str, list[tuple[Op, Op | None]]]:
        """Calls of one operation by the jobs that they name."""
        if f not in self._items_of:
            found: dict[str, list[tuple[Op, Op | None]]] = defaultdict(list)
            for invoke, result in self.calls:
                for item in invoke.items if invoke.f == f else ():
                    found[item.id].append((invoke, result))
            self._items_of[f] = found
        return self._items_of[f]

    def asked_by(self, result: Op) -> list[Item]:
        return next((invoke.items for invoke, heard in self.calls if heard is result), [])

    def claimed_since(self, lease: Lease) -> float:
        """When the first call began that can have made the lease: the response to a repeated claim has an older lease."""
        return min((call[0].t0 for key in lease.claims for call in self.claims.get(key, [])), default=lease.t0)

    def _hear_of_leases(self) -> None:
        claims = [op for op in self.ops if op.f == "claim" and op.type == "ok"]
        for op in sorted(claims, key=lambda op: op.t1):
            for item in op.items:
                self._hear_of(op, item)
        for leases in self.by_job.values():
            leases.sort(key=lambda lease: (lease.deliveries, lease.t1))

    def _hear_of(self, op: Op, item: Item) -> None:
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
                told_at=op.db_at or item.db_at,
                until=item.lease_until,
                over=op.t1 + item.lease_until - (op.db_at or op.t1),
                soonest=op.t0 + item.lease_until - (op.db_at or op.t0),
                t0=op.t0,
                t1=op.t1,
                proc=op.proc,
            )
            self.leases[item.id + item.token] = lease
            self.by_job[item.id].append(lease)
        lease.claims.add(op.key or op.call)

    def _hear_words(self) -> None:
        for invoke, result in self.calls:
            if invoke.f in ("settle", "heartbeat"):
                told = result.items if result is not None and result.items else invoke.items
                for item in told:
                    self._hear_word(invoke, result, item)

    def _hear_word(self, invoke: Op, result: Op | None, item: Item) -> None:
        lease = self.leases.get(item.id + item.token)
        if lease is None:
            return
        kind, t1, code = (result.type, result.t1, result.code) if result is not None else ("invoke", float("inf"), "")
        lease.words.append(Word(invoke.f, kind, invoke.t0, t1, item, code))
        if result is not None and item.status == "extended" and item.lease_until > lease.until:
            lease.until, lease.over = item.lease_until, result.t1 + item.lease_until - (result.db_at or result.t1)
            lease.soonest = invoke.t0 + item.lease_until - (result.db_at or invoke.t0)

    # Clocks

    def database_time(self, at: float) -> float:
        """What the database's clock said at an instant of the machine's."""
        place = bisect_right(self._clock, at, key=lambda change: change[0])
        return at + (self._clock[place - 1][1] if place else 0.0)

    # Faults

    def jumped(self, since: float, until: float) -> bool:
        """Whether the database's clock was set in between: then its times of before and after say nothing about each other. Brokers
        ask for the time once a second."""
        return any("clock" in fault.name and fault.began <= until and since <= fault.healed + GRACE for fault in self.faults)

    def troubled(self, since: float, until: float) -> bool:
        return any(fault.began <= until and since <= fault.healed + GRACE for fault in self.faults)
