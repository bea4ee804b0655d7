"""POST /queues/{name}/pause and /resume, which alone change whether a queue is paused."""

import pytest

from tests.api import Api, Json, when


def pause(api: Api, **body: str) -> Json:
    queue: Json = api.post(f"/queues/{api.queue}/pause", body)
    return queue


def resume(api: Api) -> Json:
    queue: Json = api.post(f"/queues/{api.queue}/resume")
    return queue


@pytest.fixture(autouse=True)
def configured(api: Api) -> Json:
    return api.configure(max_waiting=5)


def test_a_pause_is_told_with_its_reason(api: Api, configured: Json) -> None:
    paused = pause(api, reason="the mail server is down")
    assert paused == {
        **configured,
        "paused": True,
        "paused_at": paused["paused_at"],
        "paused_reason": "the mail server is down",
    }
    assert api.get(f"/queues/{api.queue}") == paused


def test_a_pause_needs_no_reason(api: Api) -> None:
    assert "paused_reason" not in pause(api)


@pytest.mark.parametrize("again", [{}, {"reason": "deploy"}], ids=["without a reason", "with the same reason"])
def test_pausing_again_changes_nothing(api: Api, again: dict[str, str]) -> None:
    first = pause(api, reason="deploy")
    assert pause(api, **again) == first


def test_a_new_reason_is_a_new_pause(api: Api) -> None:
    first, second = pause(api, reason="deploy"), pause(api, reason="the mail server is down")
    assert second["paused_reason"] == "the mail server is down"
    assert when(second["paused_at"]) != when(first["paused_at"])


def test_resuming_leaves_no_trace_of_the_pause(api: Api, configured: Json) -> None:
    pause(api, reason="deploy")
    assert resume(api) == configured
    assert resume(api) == configured


def test_a_paused_queue_still_takes_jobs(api: Api) -> None:
    pause(api)
    assert api.enqueue()["state"] == "ready"


def test_configuring_leaves_a_pause_alone(api: Api, configured: Json) -> None:
    paused = pause(api, reason="deploy")
    assert api.configure(max_waiting=6) == {**paused, "max_waiting": 6}
    assert api.reconfigure(max_waiting=5) == paused
    assert api.configure(max_waiting=5, paused=True) == paused
    assert api.reconfigure(paused=True) == paused
    assert resume(api) == configured
    assert api.configure(max_waiting=5, paused=False) == configured
    assert api.reconfigure(paused=False) == configured


def test_configuring_neither_pauses_nor_resumes(api: Api, configured: Json) -> None:
    path = f"/queues/{api.queue}"
    for call in (api.put, api.patch):
        refused = call(path, {"max_waiting": 6, "paused": True}, status=422)
        assert [(fault["pointer"], fault["code"]) for fault in refused["errors"]] == [("/paused", "read_only")]
        assert f"POST {path}/pause" in refused["detail"]
    assert api.get(path) == configured
    paused = pause(api)
    for call in (api.put, api.patch):
        assert call(path, {"max_waiting": 6, "paused": False}, status=422)["code"] == "validation_failed"
    assert api.get(path) == paused


def test_a_queue_is_not_created_paused(api: Api) -> None:
    api.put(f"/queues/{api.queue}-new", {"paused": True}, status=422)
    api.get(f"/queues/{api.queue}-new", status=404)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_unknown_queue_is_not_found(api: Api, verb: str) -> None:
    assert api.post(f"/queues/{api.queue}-a/{verb}", status=404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"reason": "x" * 501}, "/reason"), ({"reason": 1}, "/reason"), ({"why": "deploy"}, "/why")],
    ids=["long", "1", "why"],
)
def test_a_bad_reason_is_pointed_at(api: Api, body: Json, pointer: str) -> None:
    refused = api.post(f"/queues/{api.queue}/pause", body, status=422)
    assert [fault["pointer"] for fault in refused["errors"]] == [pointer]
    assert not api.get(f"/queues/{api.queue}")["paused"]
