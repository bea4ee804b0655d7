"""The report of a run: a table of figures, and the violations."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.checker import Violations
from tests.chaos.facts import Facts, Fault
from tests.chaos.history import Op
from tests.chaos.operation_counts import count_operations
from tests.chaos.options import Options
from tests.chaos.redelivery_causes import redelivery_causes

MAX_SHOWN = 5  # sentences per invariant


@dataclass(frozen=True)
class Report:
    options: Options
    folder: Path
    found: Violations
    figures: dict[str, str]
    injected: set[str]  # names of the injected nemeses
    operations: Counter[str]  # rare operations that were done

    @property
    def is_clean(self) -> bool:
        return not self.found

    def table(self) -> str:
        width = max(map(len, self.figures))
        lines = [f"{name:<{width}}  {value}" for name, value in self.figures.items()]
        for name, violations in self.found.items():
            lines += [f"{name}: {len(violations)} found", *(f"  {violation}" for violation in violations[:MAX_SHOWN])]
        if not self.is_clean:
            lines.append(f"seed {self.options.seed}; histories and logs: {self.folder}")
        return "\n".join(lines)


def report(facts: Facts, folder: Path, found: Violations, *, seconds: float) -> Report:
    options, faults, ops, final_state, causes = (
        facts.options,
        facts.faults,
        facts.ops,
        facts.final_state,
        redelivery_causes(facts),
    )
    recovery_times = sorted(recoveries(faults, ops))
    operations = count_operations(facts)
    injected = {name for fault in faults for name in fault.name.split("+")}
    figures = {
        "jobs": f"{len(final_state.stored):,}",
        "faults": f"{len(faults)} of {len(injected)} kinds",
        "seed": str(options.seed),
        "lost": str(count(found, "I1", "lost")),
        "double-accepted": str(count(found, "I4", "completed by two", "accepted as new")),
        "overlapping leases": str(count(found, "I5", "overlap", "one ")),
        "duplicates": str(count(found, "I3")),
        "other breaches": str(
            sum(map(len, found.values())) - sum(count(found, name) for name in ("I1", "I3", "I4", "I5"))
        ),
        "redelivered": f"{sum(causes.values()):,} times ({format_counts(causes)})",
        "rare operations": format_counts(operations),
        "unknown outcomes": (
            f"{sum(op.type == 'info' for op in ops):,} of {sum(op.type != 'invoke' for op in ops):,} calls"
        ),
        "recovery": (
            f"p50 {percentile(recovery_times, 50):.2f} s, p99 {percentile(recovery_times, 99):.2f} s, "
            f"max {percentile(recovery_times, 100):.2f} s"
        ),
        "duration": f"{seconds:.0f} s",
    }
    return Report(options, folder, found, figures, injected, operations)


def format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {times:,}" for name, times in sorted(counts.items())) or "never"


def count(found: Violations, name: str, *begins: str) -> int:
    return sum(violation.startswith(begins or "") for violation in found.get(name, []))


def recoveries(faults: list[Fault], ops: list[Op]) -> list[float]:
    """Returns the seconds from the end of each fault until all affected brokers succeed again."""
    done: dict[int, list[tuple[float, float]]] = {}
    for op in ops:
        if op.type == "ok":
            done.setdefault(op.via, []).append((op.t0, op.t1))
    return [recovery(fault, done) for fault in faults if fault.brokers]


def recovery(fault: Fault, done: dict[int, list[tuple[float, float]]]) -> float:
    """Returns the recovery time of the slowest affected broker."""
    return max(first_after(fault.healed, done.get(number, [])) - fault.healed for number in fault.brokers)


def first_after(instant: float, calls: list[tuple[float, float]]) -> float:
    """Returns the end of the first call that ended after `instant`; calls are sorted by their
    end."""
    index = bisect_left(calls, instant, key=lambda call: call[1])
    return calls[index][1] if index < len(calls) else instant


def percentile(values: list[float], share: int) -> float:
    return values[min(len(values) - 1, len(values) * share // 100)] if values else 0.0
