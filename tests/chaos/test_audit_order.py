"""Handwritten audit logs of claims: a job that is passed over is reported, one that could not be
claimed is not."""

from typing import Any

import pytest

from tests.chaos.audited_job import AuditedJob
from tests.chaos.facts import Fault
from tests.chaos.history_builder import START, HistoryBuilder


def two_jobs(history: HistoryBuilder, first: dict[str, Any], second: dict[str, Any]) -> tuple[AuditedJob, AuditedJob]:
    """Two jobs enqueued at 0.05 s, in the order of their names."""
    jobs = AuditedJob(history, "a", **first), AuditedJob(history, "b", **second)
    for job in jobs:
        job.enqueued()
    return jobs


def order_violations(job: AuditedJob) -> list[str]:
    return job.audit_violations().get("W9", [])


PASSED_OVER = ["passed over: id-a by id-b, change 3, in work lane 0"]


def test_claim_in_order_is_accepted(history: HistoryBuilder) -> None:
    first, second = two_jobs(history, {}, {})
    first.claimed(1)
    assert order_violations(second.claimed(2)) == []


def test_claims_of_one_statement_are_accepted_in_any_order(history: HistoryBuilder) -> None:
    first, second = two_jobs(history, {}, {})
    second.claimed(1)
    assert order_violations(first.claimed(1)) == []


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({}, {}, True),
        ({"priority": 1}, {}, True),
        ({}, {"priority": 1}, False),
        ({"priority": 1}, {"priority": 2}, False),
        ({"lane": 1}, {"lane": 1}, True),
        ({"lane": 1}, {"lane": 2}, False),
        ({"queue": 2}, {}, False),
        ({"queue": 5}, {"queue": 5}, False),
        ({"expires_at": START + 1}, {"started_at": START + 2}, False),
        ({"expires_at": START + 9}, {"started_at": START + 2}, True),
    ],
)
def test_job_that_comes_first_in_its_lane_is_not_passed_over(
    history: HistoryBuilder, first: dict[str, Any], second: dict[str, Any], *, found: bool
) -> None:
    assert bool(order_violations(two_jobs(history, first, second)[1].claimed(2))) is found


def test_report_names_both_jobs_and_the_lane(history: HistoryBuilder) -> None:
    assert order_violations(two_jobs(history, {}, {})[1].claimed(2)) == PASSED_OVER


@pytest.mark.parametrize(("snapshot", "found"), [("2:2:", True), ("1:2:", True), ("1:2:1", False), ("1:1:", False)])
def test_job_that_the_claim_did_not_see_is_not_passed_over(
    history: HistoryBuilder, snapshot: str, *, found: bool
) -> None:
    _, second = two_jobs(history, {}, {})  # stored by transaction 1
    assert order_violations(second.claimed(2, snapshot=snapshot)) == (PASSED_OVER if found else [])


@pytest.mark.parametrize(("ready_at", "found"), [(1.9, False), (1.2, True)])
def test_job_that_has_just_become_ready_may_be_locked(history: HistoryBuilder, ready_at: float, *, found: bool) -> None:
    first = AuditedJob(history, "a").enqueued(state="scheduled")
    second = AuditedJob(history, "b").enqueued()
    first.changed(ready_at, "ready")
    assert bool(order_violations(second.claimed(2))) is found


@pytest.mark.parametrize(("began", "found"), [(1.9, False), (2.1, True)])
def test_job_that_a_concurrent_claim_takes_is_not_passed_over(
    history: HistoryBuilder, began: float, *, found: bool
) -> None:
    first, second = two_jobs(history, {}, {})
    second.claimed(2)
    assert bool(order_violations(first.claimed(2.2, transaction_at=START + began))) is found


@pytest.mark.parametrize(("ended", "found"), [(1.9, False), (-1.0, True)])
def test_job_may_be_passed_over_while_a_fault_is_active(history: HistoryBuilder, ended: float, *, found: bool) -> None:
    history.faults.append(Fault("db_cut", START - 2, START + ended, [0]))
    assert bool(order_violations(two_jobs(history, {}, {})[1].claimed(2))) is found


def test_order_is_checked_around_a_clock_jump(history: HistoryBuilder) -> None:
    jobs = two_jobs(history, {}, {})
    history.jump(1, 3600)
    assert len(order_violations(jobs[1].claimed(4))) == 1


def test_requeued_job_is_claimed_before_later_jobs(history: HistoryBuilder) -> None:
    first, second = two_jobs(history, {}, {})
    first.claimed(1).settled(2, "release", "ready", attempt=0)
    assert order_violations(second.claimed(3)) == ["passed over: id-a by id-b, change 5, in work lane 0"]


# Groups


GROUP: dict[str, Any] = {"queue": 3, "group_key": "g"}


@pytest.mark.parametrize(("other", "found"), [("g", True), ("h", False)])
def test_group_runs_its_jobs_in_order(history: HistoryBuilder, other: str, *, found: bool) -> None:
    AuditedJob(history, "a", **GROUP).enqueued(state="pending")
    second = AuditedJob(history, "b", **(GROUP | {"group_key": other})).enqueued(state="pending")
    assert order_violations(second.changed(2, "ready")) == (
        ["ready before id-a: id-b, change 3, in grouped g"] if found else []
    )


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({"priority": -1}, {}, True),
        ({"state": "scheduled"}, {}, False),
        ({"state": "scheduled", "deliveries": 1}, {}, True),
        ({"state": "blocked"}, {}, False),
        ({}, {"state": "scheduled"}, True),
        ({}, {"state": "scheduled", "deliveries": 1}, False),
    ],
)
def test_group_is_held_by_older_jobs_that_may_run(
    history: HistoryBuilder, first: dict[str, Any], second: dict[str, Any], *, found: bool
) -> None:
    AuditedJob(history, "a", **GROUP).enqueued(**{"state": "pending", **first})
    job = AuditedJob(history, "b", **GROUP).enqueued(**{"state": "pending", **second})
    assert bool(order_violations(job.changed(2, "ready"))) is found


@pytest.mark.parametrize("retried", [True, False])
def test_next_job_of_a_group_waits_for_the_retry_of_the_previous_job(history: HistoryBuilder, *, retried: bool) -> None:
    first = AuditedJob(history, "a", **GROUP).enqueued().claimed(1)
    second = AuditedJob(history, "b", **GROUP).enqueued(state="pending")
    if retried:
        first.settled(2, "fail", "scheduled", run_at=START + 9)
    else:
        first.completed(2)
    assert bool(order_violations(second.changed(3, "ready"))) is retried
