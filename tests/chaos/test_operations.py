"""Histories with batches, purges, replays, dependencies, pauses, rate limits and API keys:
violations are reported, valid histories pass."""

import pytest

from tests.chaos.audited_job import AuditedJob
from tests.chaos.history import Item, Kind
from tests.chaos.history_builder import START, HistoryBuilder
from tests.chaos.workload import PAUSED

# Atomic calls


@pytest.mark.parametrize(("later", "found"), [(0.0, []), (0.2, ["stored in 2 transactions: k"])])
def test_batch_is_stored_in_one_transaction(history: HistoryBuilder, later: float, found: list[str]) -> None:
    history.enqueue(0.5, "a", "b")
    history.change(0.5, "a", "ready", op="INSERT")
    history.change(0.5 + later, "b", "ready", op="INSERT", queue=2)
    assert history.violations().get("W8", []) == found


def test_move_to_another_queue_is_one_transaction(history: HistoryBuilder) -> None:
    history.act(3, "replay", Item(id="id-a"), result=(Item(id="id-new", replayed_from="id-a"),))
    audited = AuditedJob(history).enqueued().claimed(1).dead_lettered(2).removed(3.05)
    assert audited.audit_violations()["W8"] == ["removed without a request: id-a, dead"]
    history.change(3.05, "new", "ready", op="INSERT", queue=2)
    assert "W8" not in audited.audit_violations()


# Removals and replays need a request


@pytest.mark.parametrize(
    ("requested", "kind", "found"),
    [(0.95, "ok", 0), (0.5, "info", 0), (0.95, "fail", 1), (1.5, "ok", 1), (0.5, "ok", 1)],
)
def test_waiting_jobs_are_removed_by_a_purge_only(
    history: HistoryBuilder, requested: float, kind: Kind, found: int
) -> None:
    history.act(requested, "purge", queue="work", kind=kind)
    assert len(AuditedJob(history).enqueued().removed(1).audit_violations().get("W8", [])) == found


def test_purge_of_another_queue_removes_nothing(history: HistoryBuilder) -> None:
    history.act(0.95, "purge", queue="other")
    assert AuditedJob(history).enqueued().removed(1).audit_violations()["W8"] == [
        "removed without a request: id-a, ready"
    ]


@pytest.mark.parametrize(("requested", "found"), [(2.95, []), (3.5, ["replayed without a request: id-a"])])
def test_dead_letters_are_replayed_on_request(history: HistoryBuilder, requested: float, found: list[str]) -> None:
    history.act(requested, "replay", Item(id="id-a"))
    assert (
        AuditedJob(history).enqueued().claimed(1).dead_lettered(2).replayed(3).audit_violations().get("W8", []) == found
    )


# Dependencies


def parent_and_child(history: HistoryBuilder, **sent: str) -> tuple[AuditedJob, AuditedJob]:
    child = AuditedJob(history, "child", sent={"depends_on": ["parent"], **sent}).enqueued(state="blocked")
    return AuditedJob(history, "parent").enqueued(), child


@pytest.mark.parametrize(("at", "found"), [(1.5, True), (2.5, False)])
def test_child_waits_for_its_parent(history: HistoryBuilder, at: float, *, found: bool) -> None:
    parent, child = parent_and_child(history)
    parent.claimed(1)
    if found:
        child.changed(at, "ready")
    parent.completed(2)
    if not found:
        child.changed(at, "ready")
    assert child.audit_violations().get("W8", []) == (
        ["ready before its parents had finished: id-child"] if found else []
    )


@pytest.mark.parametrize(("sent", "found"), [({}, True), ({"on_parent_failure": "run"}, False)])
def test_child_of_a_failed_parent_runs_only_with_on_parent_failure_run(
    history: HistoryBuilder, sent: dict[str, str], *, found: bool
) -> None:
    parent, child = parent_and_child(history, **sent)
    parent.claimed(1).dead_lettered(2)
    assert bool(child.changed(3, "ready").audit_violations().get("W8")) is found


@pytest.mark.parametrize("dies", [True, False])
def test_child_is_cancelled_with_a_failed_parent_only(history: HistoryBuilder, *, dies: bool) -> None:
    parent, child = parent_and_child(history)
    (parent.claimed(1).dead_lettered if dies else parent.claimed(1).completed)(2)
    child.moved(3, "cancelled", reason="dependency_failed")
    assert child.audit_violations().get("W8", []) == ([] if dies else ["cancelled, but no parent has failed: id-child"])


# Rate limits


@pytest.mark.parametrize(("last", "found"), [(1.5, True), (2.5, False)])
def test_queue_delivers_no_more_than_its_rate(history: HistoryBuilder, last: float, *, found: bool) -> None:
    audited_jobs = [AuditedJob(history, job, queue=4).enqueued() for job in "abc"]
    for audited, at in zip(audited_jobs, (1, 1.2, last), strict=True):
        audited.claimed(at, started_at=START + at)
    assert audited_jobs[0].audit_violations().get("W6", []) == (
        ["more than 2 in 1 s in rated: id-c, change 6"] if found else []
    )


# Pauses and API keys


@pytest.mark.parametrize(
    ("claimed", "resumed", "found"), [(2, 3, True), (1.2, 3, False), (2, 2.05, False), (4, 3, False)]
)
def test_paused_queue_delivers_nothing(one_job: HistoryBuilder, claimed: float, resumed: float, *, found: bool) -> None:
    one_job.act(1, "pause", queue=PAUSED)
    one_job.act(resumed, "resume", queue=PAUSED)
    one_job.complete_job("a", claimed, queue=PAUSED)
    assert one_job.violations() == ({"I14": ["delivered while paused was paused: id-a delivery 1"]} if found else {})


@pytest.mark.parametrize(("at", "caller", "found"), [(2, "old", True), (1.2, "old", False), (2, "new", False)])
def test_revoked_api_key_is_rejected(one_job: HistoryBuilder, at: float, caller: str, *, found: bool) -> None:
    one_job.act(1, "revoke", Item(id="old"))
    one_job.act(at, "letters", caller=caller)
    one_job.complete_job("a", 3)
    assert bool(one_job.violations().get("I14")) is found
