"""Histories written by hand, for tests of the checker: what clients said and heard. Times are seconds from the beginning."""

from itertools import count
from typing import Any

from tests.chaos.checker import Found, check
from tests.chaos.facts import Facts, Fault
from tests.chaos.final import Final, Kept, Ticks
from tests.chaos.history import Item, Kind, Op
from tests.chaos.options import Options
from tests.chaos.workload import WORK

LEASE = 10.0
BEGIN = 1_000_000.0


class Story:
    """Each call takes a tenth of a second. The database's clock is the clients'."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.faults: list[Fault] = []
        self.kept: list[Kept] = []
        self.ticks: list[Ticks] = []
        self._calls = count(1)

    def enqueue(self, at: float, *jobs: str, key: str = "k", kind: Kind = "ok", ids: dict[str, str] | None = None, **fields: Any) -> None:
        """A job's id is its key with `id-` before it, unless `ids` says otherwise."""
        told = fields.pop("told", "created")
        asked = [Item(**{"key": job, "queue": WORK, "payload": "h", **fields}) for job in jobs]
        heard = [Item(key=job, id=(ids or {}).get(job, f"id-{job}"), status=told) for job in jobs]
        self._call("enqueue", at, key, kind, asked, heard if kind == "ok" else [])

    def claim(self, at: float, job: str, *, delivery: int = 1, token: str = "", key: str = "", by: str = "w", **fields: Any) -> None:
        facts = {"queue": WORK, "payload": "h", "attempt": delivery, "max_attempts": 5, "deliveries": delivery, "db_at": BEGIN + at}
        times = {"lease_until": BEGIN + at + LEASE, "token": token or f"t{delivery}"}
        item = Item(**{"key": job, "id": f"id-{job}", **facts, **times, **fields})
        self._call("claim", at, key, "ok", [], [item], by=by)

    def claim_nothing(self, at: float, *, key: str) -> None:
        self._call("claim", at, key, "ok", [], [])

    def settle(self, at: float, job: str, outcome: str = "complete", *, delivery: int = 1, kind: Kind = "ok", **fields: Any) -> None:
        code = fields.pop("code", "")
        asked = Item(id=f"id-{job}", token=f"t{delivery}", deliveries=delivery, outcome=outcome)
        told = Item(
            **{"id": f"id-{job}", "token": f"t{delivery}", "deliveries": delivery, "outcome": outcome, "status": "settled", **fields}
        )
        self._call("settle", at, "", kind, [asked], [told] if kind == "ok" else [], code=code)

    def beat(self, at: float, job: str, *, delivery: int = 1, status: str = "extended") -> None:
        asked = Item(id=f"id-{job}", token=f"t{delivery}", deliveries=delivery)
        told = Item(id=f"id-{job}", token=f"t{delivery}", deliveries=delivery, status=status, lease_until=BEGIN + at + LEASE)
        self._call("heartbeat", at, "", "ok", [asked], [told])

    def keep(self, job: str, state: str = "completed", **fields: Any) -> None:
        self.kept.append(Kept(**{"id": f"id-{job}", "state": state, "key": job, **fields}))

    def done(self, job: str, at: float, **fields: Any) -> None:
        """Claimed, completed and kept."""
        self.claim(at, job, **fields)
        self.settle(at + 0.2, job)
        self.keep(job)

    def facts(self, **final: Any) -> Facts:
        ops = sorted(self.ops, key=lambda op: op.t1 or op.t0)
        return Facts(ops, self.faults, Final(kept=self.kept, ticks=self.ticks, **final), Options())

    def verdict(self, **final: Any) -> Found:
        return check(self.facts(**final))

    def _call(self, f: str, at: float, key: str, kind: Kind, asked: list[Item], told: list[Item], *, by: str = "w", code: str = "") -> None:
        call, t0, t1 = f"{by}#{next(self._calls)}", BEGIN + at, BEGIN + at + 0.1
        self.ops.append(Op(f=f, type="invoke", call=call, proc=by, t0=t0, key=key, items=asked))
        if kind != "invoke":
            self.ops.append(Op(f=f, type=kind, call=call, proc=by, t0=t0, t1=t1, key=key, db_at=t1, code=code, items=told))
