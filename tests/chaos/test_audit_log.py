"""Handwritten audit logs: the checker reports each violation, and accepts a similar valid log."""

from typing import Any

import pytest

from tests.chaos.audited_job import AuditedJob
from tests.chaos.history import Item
from tests.chaos.history_builder import LEASE_SECONDS, START, HistoryBuilder
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES


@pytest.fixture
def audited(history: HistoryBuilder) -> AuditedJob:
    return AuditedJob(history)


def test_valid_audit_log_has_no_violations(audited: AuditedJob) -> None:
    audited.enqueued(state="scheduled", run_at=START + 1).changed(1.5, "ready").claimed(2).requeued(13).claimed(14)
    audited.settled(15, "release", "ready", attempt=1).claimed(16).settled(
        17, "fail", "scheduled", run_at=START + 18
    ).changed(18.5, "ready")
    audited.claimed(19).completed(20)
    assert audited.audit_violations() == {}


# W1: transitions


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scheduled", "running"),
        ("pending", "running"),
        ("blocked", "running"),
        ("ready", "blocked"),
        ("running", "blocked"),
    ],
)
def test_illegal_transition_is_reported(audited: AuditedJob, old: str, new: str) -> None:
    if old == "running":
        audited.enqueued().claimed(1)
    else:
        audited.enqueued(state=old)
    (audited.claimed if new == "running" else lambda at: audited.changed(at, new))(2)
    assert audited.audit_violations()["W1"] == [
        f"illegal transition: id-a {old} -> {new}, change {len(audited.history.rows)}"
    ]


def test_removal_of_a_completed_job_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1).completed(2).removed(3)
    assert audited.audit_violations()["W1"] == ["illegal transition: id-a completed -> nothing, change 5"]


def test_completed_job_that_becomes_ready_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1).completed(2)
    audited.changed(3, "ready", op="INSERT")
    assert "illegal transition: id-a completed -> ready, change 5" in audited.audit_violations()["W1"]


def test_unrecorded_change_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1)
    audited.current["state"] = "scheduled"
    audited.changed(2, "ready", settled_as="")
    assert "unrecorded change: id-a was running, then scheduled" in audited.audit_violations()["W1"]


def test_final_state_that_differs_from_the_last_record_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1).completed(2)
    audited.current["state"] = "cancelled"
    assert audited.audit_violations()["W1"] == ["id-a is cancelled at the end, last recorded as completed"]


@pytest.mark.parametrize(("new", "found"), [("ready", True), ("cancelled", False)])
def test_job_with_requested_cancellation_is_not_requeued(audited: AuditedJob, new: str, *, found: bool) -> None:
    audited.enqueued().claimed(1)
    audited.history.cancel(1.5, "a", "running")
    audited.changed(1.55, "running", cancelling=True)
    if found:
        audited.requeued(12)
    else:
        audited.moved(12, new, reason="cancelled_by_user", crashes=1)
    assert audited.audit_violations() == ({"W1": ["cancellation requested, but ready: id-a"]} if found else {})


# W2: deliveries, attempts, tokens


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"token": "t1"}, "token was used before"),
        ({"deliveries": 3}, "delivery 1 -> 3"),
        ({"attempt": 1}, "attempt 1 -> 1 of 5"),
        ({"max_attempts": 1}, "attempt 1 -> 2 of 1"),
    ],
)
def test_claim_counts_once_with_a_new_token(audited: AuditedJob, fields: dict[str, Any], violation: str) -> None:
    audited.enqueued().claimed(1).requeued(12).claimed(13, **fields)
    assert audited.audit_violations()["W2"][0] == f"{violation}: id-a, ready -> running, change 4"


def test_token_change_during_a_lease_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1).changed(2, "running", token="other")
    assert audited.audit_violations()["W2"] == ["token changed while running: id-a, running -> running, change 3"]


@pytest.mark.parametrize(
    ("outcome", "attempt", "found"),
    [("release", 1, True), ("release", 0, False), ("fail", 0, True), ("fail", 1, False)],
)
def test_only_release_and_snooze_refund_an_attempt(
    audited: AuditedJob, outcome: str, attempt: int, *, found: bool
) -> None:
    audited.enqueued().claimed(1).settled(2, outcome, "ready", attempt=attempt)
    assert bool(audited.audit_violations().get("W2")) is found


@pytest.mark.parametrize(("attempt", "found"), [(0, True), (1, False)])
def test_late_failure_counts_the_attempt_that_was_refunded(audited: AuditedJob, attempt: int, *, found: bool) -> None:
    audited.enqueued().claimed(1).requeued(5, attempt=0, crashes=0).settled(6, "fail", "scheduled", attempt=attempt)
    assert bool(audited.audit_violations().get("W2")) is found


def test_replayed_dead_letter_with_attempts_is_reported(audited: AuditedJob) -> None:
    audited.history.act(3, "replay", Item(id="id-a"))
    audited.enqueued().claimed(1).dead_lettered(2).replayed(3.05, attempt=1)
    assert audited.audit_violations() == {
        "W2": ["replayed with attempt 1 and 0 crashes: id-a, dead -> ready, change 6"]
    }


# W3: ends of leases


@pytest.mark.parametrize(("at", "found"), [(5, True), (12, False)])
def test_lease_that_is_ended_early_is_reported(audited: AuditedJob, at: float, *, found: bool) -> None:
    audited.enqueued().claimed(1).requeued(at)
    assert audited.audit_violations() == ({"W3": ["lease ended 6.000 s early: id-a delivery 1"]} if found else {})


def test_extended_lease_that_ends_at_its_first_expiry_is_reported(audited: AuditedJob) -> None:
    audited.history.heartbeat(8.95, "a")
    audited.enqueued().claimed(1).changed(9, "running", lease_until=START + 18.95).requeued(12)
    assert audited.audit_violations() == {"W3": ["lease ended 6.950 s early: id-a delivery 1"]}


@pytest.mark.parametrize(("deadline", "found"), [(0, True), (START + 8, True), (START + 3, False)])
def test_run_is_not_stopped_before_its_timeout(audited: AuditedJob, deadline: float, *, found: bool) -> None:
    audited.enqueued().claimed(1, deadline=deadline).requeued(4, "scheduled", crashes=0, run_at=START + 4)
    assert ("W3" in audited.audit_violations()) is found


def test_lease_may_end_early_around_a_clock_jump(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1)
    audited.history.jump(4, 3600)
    audited.requeued(5)
    assert audited.audit_violations() == {}


def test_lease_that_is_ended_early_long_after_a_clock_jump_is_reported(audited: AuditedJob) -> None:
    audited.history.jump(1, 3600)
    audited.enqueued(20).claimed(21, lease_until=START + 3631).requeued(25)
    assert audited.audit_violations()["W3"] == ["lease ended 6.000 s early: id-a delivery 1"]


# W4: dead letters


@pytest.mark.parametrize(
    ("reason", "fields", "found"),
    [
        ("attempts_exhausted", {}, "after attempt 1 of 5"),
        ("attempts_exhausted", {"max_attempts": 1}, ""),
        ("poison", {"crashes": 1}, "1 leases expired"),
        ("poison", {"crashes": MAX_CRASHES}, ""),
        ("not_retryable", {}, "its worker did not report it"),
        ("expired", {}, "it was running and expires_at 0.000"),
        ("undeliverable", {}, "it was delivered 1 times"),
        ("tired", {}, "that is not a known reason"),
    ],
)
def test_dead_letter_after_lease_expiry_needs_a_valid_reason(
    audited: AuditedJob, reason: str, fields: dict[str, Any], found: str
) -> None:
    audited.enqueued().claimed(1).moved(12, "dead", reason=reason, **{"crashes": 1, **fields})
    reported = audited.audit_violations().get("W4", [])
    assert reported == ([f"dead as {reason}, but {found}: id-a"] if found else [])


@pytest.mark.parametrize(("expires_at", "found"), [(0.0, True), (9.0, True), (4.0, False)])
def test_waiting_job_expires_when_its_start_deadline_has_passed(
    audited: AuditedJob, expires_at: float, *, found: bool
) -> None:
    audited.enqueued(expires_at=START + expires_at if expires_at else 0.0).moved(5, "dead", reason="expired")
    assert ("W4" in audited.audit_violations()) is found


def test_dead_letter_is_undeliverable_only_after_many_deliveries(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1, deliveries=MAX_DELIVERIES).moved(12, "dead", reason="undeliverable", attempt=0)
    assert "W4" not in audited.audit_violations()


@pytest.mark.parametrize(("retryable", "found"), [(True, True), (False, False)])
def test_failure_that_may_be_retried_makes_no_dead_letter(audited: AuditedJob, *, retryable: bool, found: bool) -> None:
    audited.enqueued().claimed(1)
    audited.history.settle(1.95, "a", "fail", retryable=retryable)
    audited.moved(2, "dead", reason="not_retryable", settled_as="fail")
    assert audited.audit_violations() == (
        {"W4": ["dead as not_retryable, but its worker did not report it: id-a"]} if found else {}
    )


# W5: run_at and expires_at


@pytest.mark.parametrize(
    ("expires_at", "started_at", "found"),
    [(3.0, 1.0, ""), (3.0, 3.5, "0.500"), (3.0, 3.0, "0.000"), (0.0, 3.5, "")],
)
def test_job_that_starts_after_its_start_deadline_is_reported(
    audited: AuditedJob, expires_at: float, started_at: float, found: str
) -> None:
    audited.enqueued(expires_at=START + expires_at if expires_at else 0.0)
    audited.claimed(3.6, started_at=START + started_at)
    assert audited.audit_violations() == ({"W5": [f"{found} s after expires_at: id-a delivery 1"]} if found else {})


@pytest.mark.parametrize(("at", "jumped", "found"), [(20, 0.0, True), (6, 0.0, False), (20, 19.0, False)])
def test_start_after_the_start_deadline_by_the_clock_of_the_database_is_reported(
    audited: AuditedJob, at: float, jumped: float, *, found: bool
) -> None:
    audited.enqueued(expires_at=START + 3)
    if jumped:
        audited.history.jump(jumped, 0)
    audited.claimed(at, started_at=START + 2)
    assert audited.audit_violations() == ({"W5": ["12.000 s after expires_at: id-a delivery 1"]} if found else {})


@pytest.mark.parametrize(("at", "found"), [(3, True), (6, False)])
def test_job_made_ready_before_run_at_is_reported(audited: AuditedJob, at: float, *, found: bool) -> None:
    audited.enqueued(state="scheduled", run_at=START + 5).changed(at, "ready")
    assert audited.audit_violations() == ({"W5": ["2.000 s early: id-a scheduled -> ready"]} if found else {})


def test_job_stored_as_running_before_run_at_is_reported(audited: AuditedJob) -> None:
    audited.history.enqueue(0, "a")
    audited.changed(
        0.05,
        "running",
        op="INSERT",
        run_at=START + 5,
        deliveries=1,
        attempt=1,
        token="t1",
        lease_until=START + LEASE_SECONDS,
    )
    assert audited.audit_violations()["W5"] == ["4.950 s early: id-a nothing -> running"]


# W6: limits


@pytest.mark.parametrize(("jobs", "found"), [(2, False), (3, True)])
def test_queue_runs_at_most_max_running_jobs(history: HistoryBuilder, jobs: int, *, found: bool) -> None:
    audited_jobs = [AuditedJob(history, f"j{number}", queue=2).enqueued() for number in range(jobs)]
    for audited in audited_jobs:
        audited.claimed(1)
    violations = audited_jobs[0].audit_violations()
    expected = "3 run at once in limited , limit 2: id-j2"
    assert [text for text in violations.get("W6", []) if text.startswith(expected)] == violations.get("W6", [])
    assert ("W6" in violations) is found


@pytest.mark.parametrize(("groups", "found"), [(("g", "g"), True), (("g", "h"), False)])
def test_group_runs_at_most_max_running_per_group_jobs(
    history: HistoryBuilder, groups: tuple[str, str], *, found: bool
) -> None:
    audited_jobs = [
        AuditedJob(history, job, queue=3, group_key=group).enqueued() for job, group in zip("ab", groups, strict=True)
    ]
    for audited in audited_jobs:
        audited.claimed(1)
    assert ("W6" in audited_jobs[0].audit_violations()) is found


@pytest.mark.parametrize(("ends", "found"), [(None, True), (0.5, False), (1.5, True)])
def test_unique_key_has_one_unfinished_job(history: HistoryBuilder, ends: float | None, *, found: bool) -> None:
    first, second = (AuditedJob(history, job, unique_key="u") for job in "ab")
    first.enqueued().claimed(0.2)
    if ends == 0.5:
        first.completed(ends)
    second.enqueued(1)
    if ends == 1.5:
        first.completed(ends)
    assert second.audit_violations().get("W6", []) == (["unique key u twice: id-a and id-b, change 3"] if found else [])


@pytest.mark.parametrize(("fields", "found"), [({}, True), ({"replayed_from": "id-a"}, False)])
def test_second_job_of_one_request_is_reported_although_it_was_purged(
    history: HistoryBuilder, fields: dict[str, Any], *, found: bool
) -> None:
    audited = AuditedJob(history, key="a").enqueued().claimed(1).completed(2)
    history.act(3, "purge", queue="work")
    history.change(2, "twin", "ready", op="INSERT", key="a", **fields)
    history.change(3.05, "twin", "ready", op="DELETE")
    assert audited.audit_violations() == ({"W6": ["stored 2 times: a"]} if found else {})


# W7: responses


def test_acknowledgement_before_storing_is_reported(audited: AuditedJob) -> None:
    audited.enqueued(0.5).claimed(1).completed(2)
    assert audited.audit_violations() == {"W7": ["acknowledged before it was stored: a (id-a)"]}


def test_lease_in_a_response_that_is_not_stored_is_reported(audited: AuditedJob) -> None:
    audited.enqueued()
    audited.history.claim(1, "a")
    assert audited.audit_violations() == {"W7": ["response has a lease that is not stored: id-a delivery 1"]}


@pytest.mark.parametrize(("until", "found"), [(LEASE_SECONDS, False), (LEASE_SECONDS - 2, True)])
def test_extension_in_a_response_that_is_not_stored_is_reported(
    audited: AuditedJob, until: float, *, found: bool
) -> None:
    audited.enqueued().claimed(1)
    audited.history.heartbeat(2, "a")
    audited.changed(2.05, "running", lease_until=START + 2 + until)
    assert audited.audit_violations() == (
        {"W7": ["response has an extension that is not stored: id-a delivery 1"]} if found else {}
    )


@pytest.mark.parametrize(("status", "found"), [("lease_lost", True), ("extended", False)])
def test_rejected_extension_that_is_stored_is_reported(audited: AuditedJob, status: str, *, found: bool) -> None:
    audited.enqueued().claimed(1)
    audited.history.heartbeat(2, "a", status=status)
    audited.changed(2.05, "running", lease_until=START + 2 + LEASE_SECONDS)
    assert audited.audit_violations() == (
        {"W7": ["not requested, or rejected: heartbeat of id-a delivery 1"]} if found else {}
    )


def test_settlement_with_the_token_of_an_earlier_lease_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1).requeued(12).claimed(13)
    audited.history.settle(14, "a", delivery=1)
    audited.moved(14.05, "completed", settled_as="complete")
    assert audited.audit_violations() == {
        "W7": [
            "response says settled, but it is not: complete of id-a delivery 1",
            "not requested, or rejected: complete of id-a delivery 2",
        ]
    }


def test_acknowledged_settlement_that_is_not_stored_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1)
    audited.history.settle(2, "a")
    assert audited.audit_violations() == {"W7": ["response says settled, but it is not: complete of id-a delivery 1"]}


@pytest.mark.parametrize(("kind", "found"), [("fail", True), ("info", False)])
def test_rejected_settlement_that_is_stored_is_reported(audited: AuditedJob, kind: str, *, found: bool) -> None:
    audited.enqueued().claimed(1)
    audited.history.settle(1.95, "a", kind=kind, code="lease_lost")  # type: ignore[arg-type]
    audited.moved(2, "completed", settled_as="complete")
    assert audited.audit_violations() == (
        {"W7": ["not requested, or rejected: complete of id-a delivery 1"]} if found else {}
    )


@pytest.mark.parametrize(("reported", "found"), [("dead", True), ("scheduled", False)])
def test_state_in_a_response_equals_the_stored_state(audited: AuditedJob, reported: str, *, found: bool) -> None:
    audited.enqueued().claimed(1)
    audited.history.settle(1.95, "a", "fail", state=reported)
    audited.changed(2, "scheduled", settled_as="fail", lease_until=0.0)
    assert audited.audit_violations() == (
        {"W7": ["response says dead, stored scheduled: id-a delivery 1"]} if found else {}
    )


def test_settlement_stored_after_its_response_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().claimed(1)
    audited.history.settle(2, "a")
    audited.moved(2.5, "completed", settled_as="complete")
    assert len(audited.audit_violations()["W7"]) == 2


def test_acknowledged_cancel_without_effect_is_reported(audited: AuditedJob) -> None:
    audited.enqueued()
    audited.history.cancel(1, "a")
    assert audited.audit_violations() == {"W7": ["response says cancelled, but it is not: id-a"]}


@pytest.mark.parametrize("cancelled", [True, False])
def test_cancel_of_a_replayed_job_has_an_effect_of_its_own(audited: AuditedJob, *, cancelled: bool) -> None:
    audited.history.act(2.95, "replay", Item(id="id-a"))
    audited.enqueued().claimed(1).dead_lettered(2).replayed(3)
    audited.history.cancel(4, "a")
    if cancelled:
        audited.moved(4.05, "cancelled", reason="cancelled_by_user")
    assert audited.audit_violations() == ({} if cancelled else {"W7": ["response says cancelled, but it is not: id-a"]})


def test_cancellation_before_the_request_is_reported(audited: AuditedJob) -> None:
    audited.enqueued().moved(1, "cancelled", reason="cancelled_by_user")
    audited.history.cancel(2, "a", kind="info")
    assert audited.audit_violations() == {"W7": ["cancelled before the request: id-a"]}
