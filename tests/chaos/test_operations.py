"""Histories of batches, purges, replays, dependencies, pauses, rates and API keys: invalid ones are reported, valid ones pass."""

import pytest

from tests.chaos.history import Item, Kind
from tests.chaos.life import Life
from tests.chaos.story import BEGIN, Story
from tests.chaos.workload import PAUSED

# Whole or not at all


@pytest.mark.parametrize(("later", "found"), [(0.0, []), (0.2, ["stored in 2 transactions: k"])])
def test_batch_is_stored_in_one_transaction(story: Story, later: float, found: list[str]) -> None:
    story.enqueue(0.5, "a", "b")
    story.change(0.5, "a", "ready", op="INSERT")
    story.change(0.5 + later, "b", "ready", op="INSERT", queue=2)
    assert story.verdict().get("W8", []) == found


def test_move_to_another_queue_is_one_transaction(story: Story) -> None:
    story.act(3, "replay", Item(id="id-a"), told=(Item(id="id-new", replayed_from="id-a"),))
    life = Life(story).made().claimed(1).died(2).removed(3.05)
    assert life.kept()["W8"] == ["removed, but nobody asked for it: id-a, dead"]
    story.change(3.05, "new", "ready", op="INSERT", queue=2)
    assert "W8" not in life.kept()


# Removals and replays need a request


@pytest.mark.parametrize(
    ("asked", "kind", "found"), [(0.95, "ok", 0), (0.5, "info", 0), (0.95, "fail", 1), (1.5, "ok", 1), (0.5, "ok", 1)]
)
def test_waiting_jobs_are_removed_by_a_purge_only(story: Story, asked: float, kind: Kind, found: int) -> None:
    story.act(asked, "purge", queue="work", kind=kind)
    assert len(Life(story).made().removed(1).kept().get("W8", [])) == found


def test_purge_of_another_queue_removes_nothing(story: Story) -> None:
    story.act(0.95, "purge", queue="other")
    assert Life(story).made().removed(1).kept()["W8"] == ["removed, but nobody asked for it: id-a, ready"]


@pytest.mark.parametrize(("asked", "found"), [(2.95, []), (3.5, ["replayed, but nobody asked for it: id-a"])])
def test_dead_letters_are_replayed_on_request(story: Story, asked: float, found: list[str]) -> None:
    story.act(asked, "replay", Item(id="id-a"))
    assert Life(story).made().claimed(1).died(2).replayed(3).kept().get("W8", []) == found


# Dependencies


def parent_and_child(story: Story, **sent: str) -> tuple[Life, Life]:
    child = Life(story, "child", sent={"depends_on": ["parent"], **sent}).made(state="blocked")
    return Life(story, "parent").made(), child


@pytest.mark.parametrize(("at", "found"), [(1.5, True), (2.5, False)])
def test_child_waits_for_its_parent(story: Story, at: float, *, found: bool) -> None:
    parent, child = parent_and_child(story)
    parent.claimed(1)
    if found:
        child.changed(at, "ready")
    parent.completed(2)
    if not found:
        child.changed(at, "ready")
    assert child.kept().get("W8", []) == (
        ["ready before the jobs that it depends on were over: id-child"] if found else []
    )


@pytest.mark.parametrize(("sent", "found"), [({}, True), ({"on_parent_failure": "run"}, False)])
def test_child_of_a_failed_parent_runs_only_with_on_parent_failure_run(
    story: Story, sent: dict[str, str], *, found: bool
) -> None:
    parent, child = parent_and_child(story, **sent)
    parent.claimed(1).died(2)
    assert bool(child.changed(3, "ready").kept().get("W8")) is found


@pytest.mark.parametrize("dies", [True, False])
def test_child_is_cancelled_with_a_failed_parent_only(story: Story, *, dies: bool) -> None:
    parent, child = parent_and_child(story)
    (parent.claimed(1).died if dies else parent.claimed(1).completed)(2)
    child.moved(3, "cancelled", reason="dependency_failed")
    assert child.kept().get("W8", []) == (
        [] if dies else ["cancelled, but no job that it depends on has failed: id-child"]
    )


# Rates


@pytest.mark.parametrize(("last", "found"), [(1.5, True), (2.5, False)])
def test_queue_delivers_no_more_than_its_rate(story: Story, last: float, *, found: bool) -> None:
    lives = [Life(story, job, queue=4).made() for job in "abc"]
    for life, at in zip(lives, (1, 1.2, last), strict=True):
        life.claimed(at, started_at=BEGIN + at)
    assert lives[0].kept().get("W6", []) == (["more than 2 in 1 s in rated: id-c, change 6"] if found else [])


# Pauses and API keys


@pytest.mark.parametrize(
    ("claimed", "resumed", "found"), [(2, 3, True), (1.2, 3, False), (2, 2.05, False), (4, 3, False)]
)
def test_paused_queue_delivers_nothing(enqueued: Story, claimed: float, resumed: float, *, found: bool) -> None:
    enqueued.act(1, "pause", queue=PAUSED)
    enqueued.act(resumed, "resume", queue=PAUSED)
    enqueued.done("a", claimed, queue=PAUSED)
    assert enqueued.verdict() == ({"I14": ["delivered while paused was paused: id-a delivery 1"]} if found else {})


@pytest.mark.parametrize(("at", "caller", "found"), [(2, "old", True), (1.2, "old", False), (2, "new", False)])
def test_revoked_api_key_is_refused(enqueued: Story, at: float, caller: str, *, found: bool) -> None:
    enqueued.act(1, "revoke", Item(id="old"))
    enqueued.act(at, "letters", caller=caller)
    enqueued.done("a", 3)
    assert bool(enqueued.verdict().get("I14")) is found
