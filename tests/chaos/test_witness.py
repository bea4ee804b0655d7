"""Handwritten records of the witness: the checker reports each invalid one, and accepts a similar valid one."""

from typing import Any

import pytest

from tests.chaos.history import Item
from tests.chaos.life import Life
from tests.chaos.story import BEGIN, LEASE, Story
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES


@pytest.fixture
def life(story: Story) -> Life:
    return Life(story)


def test_valid_record_passes(life: Life) -> None:
    life.made(state="scheduled", run_at=BEGIN + 1).changed(1.5, "ready").claimed(2).put_back(13).claimed(14)
    life.settled(15, "release", "ready", attempt=1).claimed(16).settled(
        17, "fail", "scheduled", run_at=BEGIN + 18
    ).changed(18.5, "ready")
    life.claimed(19).completed(20)
    assert life.kept() == {}


# W1: transitions


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scheduled", "running"),
        ("parked", "running"),
        ("blocked", "running"),
        ("ready", "blocked"),
        ("running", "blocked"),
    ],
)
def test_transition_that_is_not_in_the_state_machine(life: Life, old: str, new: str) -> None:
    if old == "running":
        life.made().claimed(1)
    else:
        life.made(state=old)
    (life.claimed if new == "running" else lambda at: life.changed(at, new))(2)
    assert life.kept()["W1"] == [f"illegal: id-a {old} -> {new}, change {len(life.story.rows)}"]


def test_nothing_leaves_completed(life: Life) -> None:
    life.made().claimed(1).completed(2).removed(3)
    assert life.kept()["W1"] == ["illegal: id-a completed -> nothing, change 5"]


def test_completed_job_that_is_ready_again(life: Life) -> None:
    life.made().claimed(1).completed(2)
    life.changed(3, "ready", op="INSERT")
    assert "illegal: id-a completed -> ready, change 5" in life.kept()["W1"]


def test_change_that_the_witness_did_not_record(life: Life) -> None:
    life.made().claimed(1)
    life.now["state"] = "scheduled"
    life.changed(2, "ready", settled_as="")
    assert "unseen change: id-a was running, then scheduled" in life.kept()["W1"]


def test_final_state_that_differs_from_the_last_recorded_one(life: Life) -> None:
    life.made().claimed(1).completed(2)
    life.now["state"] = "cancelled"
    assert life.kept()["W1"] == ["id-a is cancelled in the end, last witnessed as completed"]


@pytest.mark.parametrize(("new", "found"), [("ready", True), ("cancelled", False)])
def test_job_asked_to_stop_does_not_wait_again(life: Life, new: str, *, found: bool) -> None:
    life.made().claimed(1)
    life.story.cancel(1.5, "a", "running")
    life.changed(1.55, "running", cancelling=True)
    if found:
        life.put_back(12)
    else:
        life.moved(12, new, reason="cancelled_by_user", crashes=1)
    assert life.kept() == ({"W1": ["asked to stop, but ready: id-a"]} if found else {})


# W2: deliveries, attempts, tokens


@pytest.mark.parametrize(
    ("fields", "breach"),
    [
        ({"token": "t1"}, "a token that was used before"),
        ({"deliveries": 3}, "delivery 1 -> 3"),
        ({"attempt": 1}, "attempt 1 -> 1 of 5"),
        ({"max_attempts": 1}, "attempt 1 -> 2 of 1"),
    ],
)
def test_claim_counts_once_with_a_new_token(life: Life, fields: dict[str, Any], breach: str) -> None:
    life.made().claimed(1).put_back(12).claimed(13, **fields)
    assert life.kept()["W2"][0] == f"{breach}: id-a, ready -> running, change 4"


def test_lease_whose_token_changes_while_it_runs(life: Life) -> None:
    life.made().claimed(1).changed(2, "running", token="other")
    assert life.kept()["W2"] == ["another token while it runs: id-a, running -> running, change 3"]


@pytest.mark.parametrize(
    ("outcome", "attempt", "found"),
    [("release", 1, True), ("release", 0, False), ("fail", 0, True), ("fail", 1, False)],
)
def test_only_release_and_snooze_give_an_attempt_back(life: Life, outcome: str, attempt: int, *, found: bool) -> None:
    life.made().claimed(1).settled(2, outcome, "ready", attempt=attempt)
    assert bool(life.kept().get("W2")) is found


def test_replayed_dead_letter_keeps_no_attempts(life: Life) -> None:
    life.story.act(3, "replay", Item(id="id-a"))
    life.made().claimed(1).died(2).replayed(3.05, attempt=1)
    assert life.kept() == {"W2": ["replayed with attempt 1 and 0 crashes: id-a, dead -> ready, change 6"]}


# W3: why leases end


@pytest.mark.parametrize(("at", "found"), [(5, True), (12, False)])
def test_lease_is_not_taken_back_before_its_end(life: Life, at: float, *, found: bool) -> None:
    life.made().claimed(1).put_back(at)
    assert life.kept() == ({"W3": ["lease ended 6.000 s early: id-a delivery 1"]} if found else {})


def test_extended_lease_is_not_taken_back_at_its_first_end(life: Life) -> None:
    life.made().claimed(1).changed(9, "running", lease_until=BEGIN + 19).put_back(12)
    assert life.kept() == {"W3": ["lease ended 7.000 s early: id-a delivery 1"]}


@pytest.mark.parametrize(("deadline", "found"), [(0, True), (BEGIN + 8, True), (BEGIN + 3, False)])
def test_run_is_not_stopped_before_its_timeout(life: Life, deadline: float, *, found: bool) -> None:
    life.made().claimed(1, deadline=deadline).put_back(4, "scheduled", crashes=0, run_at=BEGIN + 4)
    assert ("W3" in life.kept()) is found


def test_around_a_jump_of_the_clock_leases_end_early(life: Life) -> None:
    life.made().claimed(1)
    life.story.jump(4, 3600)
    life.put_back(5)
    assert life.kept() == {}


def test_long_after_a_jump_leases_end_in_time(life: Life) -> None:
    life.story.jump(1, 3600)
    life.made(20).claimed(21, lease_until=BEGIN + 3631).put_back(25)
    assert life.kept()["W3"] == ["lease ended 6.000 s early: id-a delivery 1"]


# W4: why jobs die


@pytest.mark.parametrize(
    ("reason", "fields", "found"),
    [
        ("attempts_exhausted", {}, "after attempt 1 of 5"),
        ("attempts_exhausted", {"max_attempts": 1}, ""),
        ("poison", {"crashes": 1}, "1 leases ran out"),
        ("poison", {"crashes": MAX_CRASHES}, ""),
        ("not_retryable", {}, "its worker has not said so"),
        ("expired", {}, "it was running and expires_at 0.000"),
        ("undeliverable", {}, "it was delivered 1 times"),
        ("tired", {}, "that is no reason"),
    ],
)
def test_lease_that_runs_out_kills_for_a_reason(life: Life, reason: str, fields: dict[str, Any], found: str) -> None:
    life.made().claimed(1).moved(12, "dead", reason=reason, **{"crashes": 1, **fields})
    told = life.kept().get("W4", [])
    assert told == ([f"dead as {reason}, but {found}: id-a"] if found else [])


@pytest.mark.parametrize(("expires_at", "found"), [(0.0, True), (9.0, True), (4.0, False)])
def test_waiting_job_expires_when_its_start_deadline_has_passed(life: Life, expires_at: float, *, found: bool) -> None:
    life.made(expires_at=BEGIN + expires_at if expires_at else 0.0).moved(5, "dead", reason="expired")
    assert ("W4" in life.kept()) is found


def test_undeliverable_after_many_deliveries(life: Life) -> None:
    life.made().claimed(1, deliveries=MAX_DELIVERIES).moved(12, "dead", reason="undeliverable", attempt=0)
    assert "W4" not in life.kept()


# W5: run_at


@pytest.mark.parametrize(("at", "found"), [(3, True), (6, False)])
def test_job_is_not_made_ready_before_its_time(life: Life, at: float, *, found: bool) -> None:
    life.made(state="scheduled", run_at=BEGIN + 5).changed(at, "ready")
    assert life.kept() == ({"W5": ["2.000 s early: id-a scheduled -> ready"]} if found else {})


def test_job_that_is_stored_running_before_its_time(life: Life) -> None:
    life.story.enqueue(0, "a")
    life.changed(
        0.05, "running", op="INSERT", run_at=BEGIN + 5, deliveries=1, attempt=1, token="t1", lease_until=BEGIN + LEASE
    )
    assert life.kept()["W5"] == ["4.950 s early: id-a nothing -> running"]


# W6: limits


@pytest.mark.parametrize(("jobs", "found"), [(2, False), (3, True)])
def test_queue_runs_at_most_max_running_jobs(story: Story, jobs: int, *, found: bool) -> None:
    lives = [Life(story, f"j{number}", queue=2).made() for number in range(jobs)]
    for life in lives:
        life.claimed(1)
    kept = lives[0].kept()
    assert [
        told for told in kept.get("W6", []) if told.startswith("3 run at once in limited , where 2 may: id-j2")
    ] == kept.get("W6", [])
    assert ("W6" in kept) is found


@pytest.mark.parametrize(("groups", "found"), [(("g", "g"), True), (("g", "h"), False)])
def test_group_runs_at_most_max_running_per_group_jobs(story: Story, groups: tuple[str, str], *, found: bool) -> None:
    lives = [Life(story, job, queue=3, group_key=group).made() for job, group in zip("ab", groups, strict=True)]
    for life in lives:
        life.claimed(1)
    assert ("W6" in lives[0].kept()) is found


@pytest.mark.parametrize(("ends", "found"), [(None, True), (0.5, False), (1.5, True)])
def test_unique_key_has_one_live_job(story: Story, ends: float | None, *, found: bool) -> None:
    first, second = (Life(story, job, unique_key="u") for job in "ab")
    first.made().claimed(0.2)
    if ends == 0.5:
        first.completed(ends)
    second.made(1)
    if ends == 1.5:
        first.completed(ends)
    assert second.kept().get("W6", []) == (["unique key u twice: id-a and id-b, change 3"] if found else [])


# W7: answers


def test_acknowledged_before_it_was_stored(life: Life) -> None:
    life.made(0.5).claimed(1).completed(2)
    assert life.kept() == {"W7": ["acknowledged before it was stored: a (id-a)"]}


def test_claimed_lease_that_is_not_stored(life: Life) -> None:
    life.made()
    life.story.claim(1, "a")
    assert life.kept() == {"W7": ["told of a lease that is not there: id-a delivery 1"]}


@pytest.mark.parametrize(("until", "found"), [(LEASE, False), (LEASE - 2, True)])
def test_heartbeat_whose_extension_is_not_stored(life: Life, until: float, *, found: bool) -> None:
    life.made().claimed(1)
    life.story.beat(2, "a")
    life.changed(2.05, "running", lease_until=BEGIN + 2 + until)
    assert life.kept() == ({"W7": ["told of an extension that is not there: id-a delivery 1"]} if found else {})


def test_acknowledged_settlement_that_is_not_stored(life: Life) -> None:
    life.made().claimed(1)
    life.story.settle(2, "a")
    assert life.kept() == {"W7": ["told that it was settled, and it was not: complete of id-a delivery 1"]}


@pytest.mark.parametrize(("kind", "found"), [("fail", True), ("info", False)])
def test_refused_settlement_that_counts(life: Life, kind: str, *, found: bool) -> None:
    life.made().claimed(1)
    life.story.settle(1.95, "a", kind=kind, code="lease_lost")  # type: ignore[arg-type]
    life.moved(2, "completed", settled_as="complete")
    assert life.kept() == (
        {"W7": ["nobody asked for it, or it was refused: complete of id-a delivery 1"]} if found else {}
    )


@pytest.mark.parametrize(("told", "found"), [("dead", True), ("scheduled", False)])
def test_answer_names_the_state_that_is_stored(life: Life, told: str, *, found: bool) -> None:
    life.made().claimed(1)
    life.story.settle(1.95, "a", "fail", state=told)
    life.changed(2, "scheduled", settled_as="fail", lease_until=0.0)
    assert life.kept() == ({"W7": ["told dead, stored scheduled: id-a delivery 1"]} if found else {})


def test_settlement_that_was_done_only_after_its_answer(life: Life) -> None:
    life.made().claimed(1)
    life.story.settle(2, "a")
    life.moved(2.5, "completed", settled_as="complete")
    assert len(life.kept()["W7"]) == 2


def test_cancel_that_changed_nothing(life: Life) -> None:
    life.made()
    life.story.cancel(1, "a")
    assert life.kept() == {"W7": ["told that it was cancelled, and it was not: id-a"]}


def test_job_cancelled_before_the_request(life: Life) -> None:
    life.made().moved(1, "cancelled", reason="cancelled_by_user")
    life.story.cancel(2, "a", kind="info")
    assert life.kept() == {"W7": ["cancelled before anybody asked: id-a"]}
