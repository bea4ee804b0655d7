"""Passes of a fair queue: each group gets one job in each pass."""

from uuid import UUID

from app.concurrency.fairness import assign_passes
from app.concurrency.store import PassRow, PendingRow
from tests.table import table


@table(
    ("passes", "remembered_passes", "pending", "expected"),
    [
        # The first jobs of a queue.
        ({"a": (None, None), "b": (None, None)}, {}, "aab", "a1 a2 b1"),
        # A group that joins begins with the pass that is being served.
        ({"a": (9, 7), "b": (None, 7)}, {}, "abb", "a10 b7 b8"),
        # The job of the group in the current pass has ended: its next job is in the next pass.
        ({"a": (None, 7)}, {"a": 7}, "a", "a8"),
        # The pass of a job of another priority is capped at the current pass.
        ({"a": (None, 7)}, {"a": 500}, "a", "a8"),
        # No job is ready: a group that was idle does not start far ahead of the others.
        ({"a": (None, None), "b": (None, None)}, {"a": 500}, "abb", "a501 b500 b501"),
        ({"a": (None, None), "b": (None, None)}, {"a": 5, "b": 4}, "ab", "a6 b5"),
    ],
)
def test_each_pass_has_one_job_of_each_group(
    passes: dict[str, tuple[int | None, int | None]], remembered_passes: dict[str, int], pending: str, expected: str
) -> None:
    rows = [PassRow(group, 0, last, current) for group, (last, current) in passes.items()]
    jobs = [PendingRow(UUID(int=number), group, 0) for number, group in enumerate(pending)]
    admissions = assign_passes(jobs, rows, remembered_passes)
    found = [f"{group}{params.admission}" for group, params in zip(pending, admissions, strict=True)]
    assert " ".join(found) == expected
