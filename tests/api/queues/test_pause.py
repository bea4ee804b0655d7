"""POST /queues/{name}/pause and /resume: only these change whether a queue is paused."""

import pytest

from app.broker import Broker
from tests.api.concurrency.test_cost import claim_params
from tests.api_client import Api, Json, parse_time
from tests.database import Loop
from tests.table import table


def pause(api: Api, **body: str) -> Json:
    queue: Json = api.post(f"/queues/{api.queue}/pause", body)
    return queue


def resume(api: Api) -> Json:
    queue: Json = api.post(f"/queues/{api.queue}/resume")
    return queue


@pytest.fixture(autouse=True)
def configured_queue(api: Api) -> Json:
    return api.configure(max_waiting=5)


def test_paused_queue_shows_the_reason(api: Api, configured_queue: Json) -> None:
    paused = pause(api, reason="the mail server is down")
    assert paused == {
        **configured_queue,
        "paused": True,
        "paused_at": paused["paused_at"],
        "paused_reason": "the mail server is down",
    }
    assert api.get(f"/queues/{api.queue}") == paused


def test_pause_reason_is_optional(api: Api) -> None:
    assert "paused_reason" not in pause(api)


@pytest.mark.parametrize("repeated_body", [{}, {"reason": "deploy"}], ids=["without a reason", "with the same reason"])
def test_pausing_again_changes_nothing(api: Api, repeated_body: dict[str, str]) -> None:
    first = pause(api, reason="deploy")
    assert pause(api, **repeated_body) == first


def test_pausing_again_with_another_reason_replaces_the_pause(api: Api) -> None:
    first, second = pause(api, reason="deploy"), pause(api, reason="the mail server is down")
    assert second["paused_reason"] == "the mail server is down"
    assert parse_time(second["paused_at"]) != parse_time(first["paused_at"])


def test_resume_restores_the_queue_as_before_the_pause(api: Api, configured_queue: Json) -> None:
    pause(api, reason="deploy")
    assert resume(api) == configured_queue
    assert resume(api) == configured_queue


def test_paused_queue_accepts_jobs(api: Api) -> None:
    pause(api)
    assert api.enqueue()["state"] == "ready"


def test_put_and_patch_keep_a_pause(api: Api, configured_queue: Json) -> None:
    paused = pause(api, reason="deploy")
    assert api.configure(max_waiting=6) == {**paused, "max_waiting": 6}
    assert api.reconfigure(max_waiting=5) == paused
    assert api.configure(max_waiting=5, paused=True) == paused
    assert api.reconfigure(paused=True) == paused
    assert resume(api) == configured_queue
    assert api.configure(max_waiting=5, paused=False) == configured_queue
    assert api.reconfigure(paused=False) == configured_queue


def test_put_and_patch_cannot_change_paused(api: Api, configured_queue: Json) -> None:
    path = f"/queues/{api.queue}"
    for call in (api.put, api.patch):
        problem = call(path, {"max_waiting": 6, "paused": True}, status=422)
        assert [(fault["pointer"], fault["code"]) for fault in problem["errors"]] == [("/paused", "read_only")]
        assert f"POST {path}/pause" in problem["detail"]
    assert api.get(path) == configured_queue
    paused = pause(api)
    for call in (api.put, api.patch):
        assert call(path, {"max_waiting": 6, "paused": False}, status=422)["code"] == "validation_failed"
    assert api.get(path) == paused


@pytest.mark.parametrize("config", [{}, {"max_running": 5}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("job_types", [None, ["test"]], ids=["shares a statement", "has its own statement"])
def test_claim_that_began_before_a_pause_takes_no_job_after_it(
    broker_services: Broker, api: Api, loop: Loop, config: Json, job_types: list[str] | None
) -> None:
    """The claim has found the queue unpaused. Until its statement, it may wait for a connection."""
    api.configure(**config)
    api.enqueue()
    queues = loop.run(broker_services.queues.find_all([api.queue]))
    pause(api)
    loop.run(broker_services.infra.config_versions.check_now())
    params = claim_params()._replace(job_types=job_types)
    assert loop.run(broker_services.claims.claim(queues, 1, params)).rows == []
    resume(api)
    loop.run(broker_services.infra.config_versions.check_now())
    assert len(loop.run(broker_services.claims.claim(queues, 1, params)).rows) == 1


def test_put_cannot_create_a_paused_queue(api: Api) -> None:
    api.put(f"/queues/{api.queue}-new", {"paused": True}, status=422)
    api.get(f"/queues/{api.queue}-new", status=404)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pause_and_resume_of_an_unknown_queue_are_not_found(api: Api, verb: str) -> None:
    assert api.post(f"/queues/{api.queue}-a/{verb}", status=404)["code"] == "not_found"


@table(
    ("body", "pointer"),
    [({"reason": "x" * 501}, "/reason"), ({"reason": 1}, "/reason"), ({"why": "deploy"}, "/why")],
)
def test_invalid_pause_body_is_rejected_with_a_pointer(api: Api, body: Json, pointer: str) -> None:
    problem = api.post(f"/queues/{api.queue}/pause", body, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    assert not api.get(f"/queues/{api.queue}")["paused"]
