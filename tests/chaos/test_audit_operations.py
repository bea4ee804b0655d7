"""Handwritten audit logs of an operator's calls: one without effect is reported, one that was done
is not."""

import pytest

from tests.chaos.audited_job import AuditedJob
from tests.chaos.facts import Fault
from tests.chaos.history import Item, Kind
from tests.chaos.history_builder import START, HistoryBuilder
from tests.chaos.workload import PAUSED


def operation_violations(job: AuditedJob) -> list[str]:
    return job.audit_violations().get("W10", [])


# Purges


@pytest.mark.parametrize(
    ("enqueued", "queue", "kind", "found"),
    [
        (1.0, "work", "ok", True),
        (1.0, "work", "info", False),
        (1.0, "work", "fail", False),
        (1.0, "limited", "ok", False),
        (2.9, "work", "ok", False),
        (4.0, "work", "ok", False),
    ],
)
def test_purge_leaves_no_waiting_job(
    history: HistoryBuilder, enqueued: float, queue: str, kind: Kind, *, found: bool
) -> None:
    history.act(3, "purge", queue=queue, kind=kind)
    job = AuditedJob(history).enqueued(enqueued)
    assert operation_violations(job) == (["purged, but still there: id-a in work"] if found else [])


@pytest.mark.parametrize(("removed", "found"), [(3.05, False), (4.0, True)])
def test_purge_removes_jobs_before_its_response(history: HistoryBuilder, removed: float, *, found: bool) -> None:
    history.act(3, "purge", queue="work")
    assert bool(operation_violations(AuditedJob(history).enqueued(1).removed(removed))) is found


def test_purge_leaves_running_jobs(history: HistoryBuilder) -> None:
    history.act(3, "purge", queue="work")
    assert operation_violations(AuditedJob(history).enqueued().claimed(1)) == []


def test_job_that_changes_during_a_purge_may_stay(history: HistoryBuilder) -> None:
    history.act(3, "purge", queue="work")
    assert operation_violations(AuditedJob(history).enqueued(1, state="scheduled").changed(3.05, "ready")) == []


@pytest.mark.parametrize(("offset", "found"), [(-3600, False), (3600, True)])
def test_job_of_the_future_is_not_purged(history: HistoryBuilder, offset: float, *, found: bool) -> None:
    job = AuditedJob(history).enqueued(1)
    history.jump(1.5, offset)
    history.act(3, "purge", queue="work")
    assert bool(operation_violations(job)) is found


def test_purged_job_is_not_delivered(history: HistoryBuilder) -> None:
    history.act(2.95, "purge", queue="work")
    job = AuditedJob(history).enqueued().removed(3)
    assert job.audit_violations() == {}
    history.claim(4, "a")
    assert job.audit_violations() == {"W7": ["response has a lease that is not stored: id-a delivery 1"]}


@pytest.mark.parametrize(("removed", "found"), [(3.05, False), (4.0, True)])
def test_purge_removes_dead_letters(history: HistoryBuilder, removed: float, *, found: bool) -> None:
    history.act(3, "purge", Item(id="id-a"))
    job = AuditedJob(history).enqueued().claimed(1).dead_lettered(2).removed(removed)
    assert operation_violations(job) == (["purged, but still there: id-a, dead"] if found else [])


# Replays


@pytest.mark.parametrize(("replayed", "found"), [(3.05, False), (4.0, True), (2.5, True), (0.0, True)])
def test_replay_makes_its_dead_letters_live(history: HistoryBuilder, replayed: float, *, found: bool) -> None:
    history.act(3, "replay", Item(id="id-a"), result=(Item(id="id-a"),))
    job = AuditedJob(history).enqueued().claimed(1).dead_lettered(2)
    if replayed:
        job.replayed(replayed)
    assert operation_violations(job) == (["response says replayed, but it is not: id-a"] if found else [])


@pytest.mark.parametrize(("source", "found"), [("id-a", False), ("", True)])
def test_move_stores_a_new_job(history: HistoryBuilder, source: str, *, found: bool) -> None:
    history.act(3, "replay", Item(id="id-a"), result=(Item(id="id-new", replayed_from="id-a"),))
    job = AuditedJob(history).enqueued().claimed(1).dead_lettered(2).removed(3.05)
    history.change(3.05, "new", "ready", op="INSERT", queue=2, replayed_from=source)
    assert operation_violations(job) == (["response says replayed, but it is not: id-new"] if found else [])


# Pauses


@pytest.mark.parametrize(
    ("claimed", "began", "resumed", "found"),
    [(2, 2, 3, True), (2, 1.2, 3, False), (1.2, 1.2, 3, False), (2, 2, 1.5, False), (4, 4, 3, False)],
)
def test_no_claim_begins_in_a_paused_queue(
    history: HistoryBuilder, claimed: float, began: float, resumed: float, *, found: bool
) -> None:
    history.act(1, "pause", queue=PAUSED)
    history.act(resumed, "resume", queue=PAUSED)
    job = AuditedJob(history, queue=7).enqueued().claimed(claimed, transaction_at=START + began)
    assert operation_violations(job) == (["claimed while paused was paused: id-a delivery 1"] if found else [])


def test_broker_in_a_fault_may_claim_by_rules_that_it_has_read(history: HistoryBuilder) -> None:
    history.act(1, "pause", queue=PAUSED)
    history.faults.append(Fault("broker_stop", START + 1, START + 2, [0]))
    assert operation_violations(AuditedJob(history, queue=7).enqueued().claimed(2)) == []
