"""New jobs as columns: they contain the same rows."""

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from app.jobs.new_jobs import NewJobs
from app.jobs.rows import NewJob

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ROW = NewJob._make([None] * len(NewJob._fields))._replace(run_at=NOON, max_attempts=5, job_type="test")
OPTIONAL = ("group_key", "lease_seconds", "metadata", "depends_on", "lease_token")


@st.composite
def new_rows(draw: st.DrawFn) -> list[NewJob]:
    """Rows of which some columns have one value, some only NULLs, and some both."""
    values = {name: st.sampled_from([None, "{}", "[1]"]) for name in draw(st.sets(st.sampled_from(OPTIONAL)))}
    states = st.sampled_from(draw(st.sampled_from([["ready"], ["ready", "scheduled"]])))
    return [
        ROW._replace(
            id=UUID(int=number),
            state=draw(states),
            priority=number % 2,
            payload="x" * number,
            **{name: draw(value) for name, value in values.items()},  # type: ignore[arg-type]
        )
        for number in range(draw(st.integers(1, 6)))
    ]


@given(new_rows(), st.integers(0, 6), st.integers(0, 6))
def test_columns_contain_the_same_rows(rows: list[NewJob], start: int, end: int) -> None:
    jobs = NewJobs.of(rows)
    assert (len(jobs), list(jobs), jobs[-1]) == (len(rows), rows, rows[-1])
    if rows[start:end]:
        assert list(jobs[start:end]) == rows[start:end]


@given(new_rows())
def test_size_of_a_job_counts_payload_metadata_and_parents_twice(rows: list[NewJob]) -> None:
    sizes = [len(row.payload) + len(row.metadata or "") + 2 * len(row.depends_on or "") for row in rows]
    assert NewJobs.of(rows).sizes() == sizes


@given(new_rows())
def test_common_state_is_that_of_all_jobs(rows: list[NewJob]) -> None:
    states = {row.state for row in rows}
    assert NewJobs.of(rows).common_state == (states.pop() if len(states) == 1 else None)
