"""Builds histories for tests of the checker: requests and responses.

Times are seconds from START."""

from itertools import count
from typing import Any

from msgspec.structs import replace

from tests.chaos.audit_log import AuditRow
from tests.chaos.checker import Violations, check
from tests.chaos.facts import Facts, Fault
from tests.chaos.final_state import FinalState, ScheduleRuns, StoredJob
from tests.chaos.history import Item, Kind, Op
from tests.chaos.options import Options
from tests.chaos.workload import WORK

LEASE_SECONDS = 10.0
START = 1_000_000.0


class HistoryBuilder:
    """A history.

    Each call takes 0.1 s. The database's clock equals the clients', until it jumps."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.faults: list[Fault] = []
        self.stored: list[StoredJob] = []
        self.schedule_runs: list[ScheduleRuns] = []
        self.rows: list[AuditRow] = []
        self._ahead = 0.0  # seconds by which the database's clock is ahead
        self._calls = count(1)

    def enqueue(
        self, at: float, *jobs: str, key: str = "k", kind: Kind = "ok", ids: dict[str, str] | None = None, **fields: Any
    ) -> None:
        """Enqueues jobs. The id of a job is `id-` and its key, unless `ids` has another one."""
        status = fields.pop("status", "created")
        request = [Item(**{"key": job, "queue": WORK, "payload": "h", **fields}) for job in jobs]
        results = [Item(key=job, id=(ids or {}).get(job, f"id-{job}"), status=status) for job in jobs]
        self._call("enqueue", at, key, kind, request, results if kind == "ok" else [])

    def claim(
        self, at: float, job: str, *, delivery: int = 1, token: str = "", key: str = "", proc: str = "w", **fields: Any
    ) -> None:
        facts = {"queue": WORK, "payload": "h", "attempt": delivery, "max_attempts": 5, "deliveries": delivery}
        times = {
            "db_at": START + at + self._ahead,
            "lease_until": START + at + self._ahead + LEASE_SECONDS,
            "token": token or f"t{delivery}",
        }
        item = Item(**{"key": job, "id": f"id-{job}", **facts, **times, **fields})
        self._call("claim", at, key, "ok", [], [item], proc=proc)

    def claim_nothing(self, at: float, *, key: str) -> None:
        self._call("claim", at, key, "ok", [], [])

    def settle(
        self, at: float, job: str, outcome: str = "complete", *, delivery: int = 1, kind: Kind = "ok", **fields: Any
    ) -> None:
        code = fields.pop("code", "")
        sent = {name: fields[name] for name in ("result", "retryable") if name in fields}
        request = Item(id=f"id-{job}", token=f"t{delivery}", deliveries=delivery, outcome=outcome, **sent)
        result = Item(
            **{
                "id": f"id-{job}",
                "token": f"t{delivery}",
                "deliveries": delivery,
                "outcome": outcome,
                "status": "settled",
                **fields,
            }
        )
        self._call("settle", at, "", kind, [request], [result] if kind == "ok" else [], code=code)

    def cancel(self, at: float, job: str, state: str = "cancelled", *, kind: Kind = "ok") -> None:
        """Cancels a job. `state` is the state in the response."""
        self._call(
            "cancel", at, "", kind, [Item(id=f"id-{job}")], [Item(id=f"id-{job}", state=state)] if kind == "ok" else []
        )

    def jump(self, at: float, offset: float) -> None:
        """Sets the database's clock `offset` seconds ahead of the machine's from then on."""
        self._ahead = offset
        self.faults.append(Fault("clock_jump", START + at, START + at + 0.1, []))
        self.rows.append(AuditRow(n=len(self.rows) + 1, at=START + at, xid=0, source="clock", clock_offset=offset))

    def change(
        self, at: float, job: str, state: str, *, old: str = "", op: str = "UPDATE", source: str = "jobs", **fields: Any
    ) -> None:
        """Adds a row of the audit log. Changes in the same 0.1 s are one transaction, which sees all
        earlier ones."""
        xid = round(at * 10) + 1
        row = {"id": f"id-{job}", "state": state, "old_state": old, "max_attempts": 5}
        seen = {"transaction_at": START + at, "snapshot": f"{xid}:{xid}:"}
        self.rows.append(
            AuditRow(n=len(self.rows) + 1, at=START + at, xid=xid, op=op, source=source, **{**row, **seen, **fields})
        )

    def heartbeat(self, at: float, job: str, *, delivery: int = 1, status: str = "extended") -> None:
        request = Item(id=f"id-{job}", token=f"t{delivery}", deliveries=delivery)
        result = Item(
            id=f"id-{job}",
            token=f"t{delivery}",
            deliveries=delivery,
            status=status,
            lease_until=START + at + LEASE_SECONDS,
        )
        self._call("heartbeat", at, "", "ok", [request], [result])

    def act(
        self,
        at: float,
        f: str,
        *items: Item,
        result: tuple[Item, ...] = (),
        queue: str = "",
        kind: Kind = "ok",
        caller: str = "",
    ) -> None:
        """Adds a call of an operator."""
        self._call(f, at, "", kind, list(items), list(result), proc="operator", queue=queue, caller=caller)

    def store(self, job: str, state: str = "completed", **fields: Any) -> None:
        self.stored.append(StoredJob(**{"id": f"id-{job}", "state": state, "key": job, **fields}))

    def complete_job(self, job: str, at: float, **fields: Any) -> None:
        """Claims and completes a job, and stores it as completed."""
        self.claim(at, job, **fields)
        self.settle(at + 0.2, job)
        self.store(job)

    def facts(self, **final_state: Any) -> Facts:
        ops = sorted(self.ops, key=lambda op: op.t1 or op.t0)
        return Facts(
            ops,
            self.faults,
            FinalState(stored=self.stored, schedule_runs=self.schedule_runs, audit_log=self.rows, **final_state),
            Options(),
        )

    def violations(self, **final_state: Any) -> Violations:
        return check(self.facts(**final_state))

    def _call(
        self,
        f: str,
        at: float,
        key: str,
        kind: Kind,
        request: list[Item],
        result: list[Item],
        *,
        proc: str = "w",
        code: str = "",
        **fields: str,
    ) -> None:
        t0, t1 = START + at, START + at + 0.1
        invoked = {"call": f"{proc}#{next(self._calls)}", "proc": proc, "key": key, **fields}
        invocation = Op(f=f, type="invoke", t0=t0, items=request, **invoked)  # type: ignore[arg-type]
        self.ops.append(invocation)
        if kind != "invoke":
            self.ops.append(replace(invocation, type=kind, t1=t1, db_at=t1 + self._ahead, code=code, items=result))
