"""GET /jobs."""

from typing import Any

import pytest

from tests.api import Api, Json, when


def ids(jobs: list[Json]) -> list[str]:
    return [job["id"] for job in jobs]


@pytest.fixture
def in_every_state(api: Api) -> dict[str, str]:
    """One job in each state that a job can be in today: state -> id."""
    states = {"completed": api.enqueue()}
    api.complete(api.claim_one())
    states["dead"] = api.dead()
    states["cancelled"] = api.enqueue()
    api.cancel(states["cancelled"])
    states["running"] = api.enqueue()
    api.claim_one()
    states["ready"] = api.enqueue()
    states["scheduled"] = api.enqueue(delay_seconds=60)
    return {state: job["id"] for state, job in states.items()}


def test_the_newest_come_first_whatever_their_state(api: Api, in_every_state: dict[str, str]) -> None:
    assert ids(api.get("/jobs")["items"]) == sorted(in_every_state.values(), reverse=True)
    assert ids(api.get("/jobs", order="asc")["items"]) == sorted(in_every_state.values())


def test_a_listed_job_is_told_like_one_that_is_asked_for(api: Api, in_every_state: dict[str, str]) -> None:
    listed = api.get("/jobs", queue=api.queue)["items"]
    assert listed == [api.job(job["id"]) for job in listed]


@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "completed", "dead", "cancelled"])
def test_a_state_filters(api: Api, in_every_state: dict[str, str], state: str) -> None:
    found = api.get("/jobs", state=state)["items"]
    assert [(job["id"], job["state"]) for job in found] == [(in_every_state[state], state)]


def test_nothing_is_blocked_yet(api: Api, in_every_state: dict[str, str]) -> None:
    assert api.get("/jobs", state="blocked") == {"items": []}


def test_each_filter_leaves_only_what_fulfils_it(api: Api) -> None:
    wanted = api.enqueue(queue=f"{api.queue}-a", job_type="mail", group="g1", tags=["x", "y"])
    api.enqueue(queue=f"{api.queue}-b", job_type="other", group="g2", tags=["xx"])
    api.enqueue()
    values: Json = {"queue": f"{api.queue}-a", "job_type": "mail", "group": "g1", "tag": "y"}
    for name, value in values.items():
        assert ids(api.get("/jobs", **{name: value})["items"]) == [wanted["id"]], name


def test_filters_are_all_to_be_fulfilled(api: Api) -> None:
    api.enqueue(job_type="a", tags=["t"])
    both = api.enqueue(job_type="b", tags=["t"])
    assert ids(api.get("/jobs", job_type="b", tag="t", queue=api.queue, state="ready")["items"]) == [both["id"]]
    assert api.get("/jobs", job_type="b", tag="t", state="running") == {"items": []}


def test_filters_reach_finished_and_dead_jobs(api: Api) -> None:
    dead = api.dead(job_type="a", tags=["t"], group="g")
    done = api.enqueue(job_type="a", tags=["t"], group="g")
    api.complete(api.claim_one())
    api.enqueue(job_type="b")
    assert ids(api.get("/jobs", job_type="a", tag="t", group="g")["items"]) == [done["id"], dead["id"]]


def test_created_after_includes_its_instant_and_created_before_does_not(api: Api) -> None:
    first = api.enqueue()
    api.complete(api.claim_one())
    second = api.enqueue(run_at="2020-01-01T00:00:00Z")
    assert when(second["created_at"]) > when(first["created_at"])
    assert ids(api.get("/jobs", created_after=second["created_at"])["items"]) == [second["id"]]
    assert ids(api.get("/jobs", created_before=second["created_at"])["items"]) == [first["id"]]


@pytest.mark.parametrize("instant", ["1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00"])
def test_everything_was_created_after_the_epoch(api: Api, instant: str) -> None:
    job = api.enqueue()
    assert ids(api.get("/jobs", created_after=instant)["items"]) == [job["id"]]
    assert api.get("/jobs", created_before=instant) == {"items": []}


def test_everything_was_created_before_the_end_of_time(api: Api) -> None:
    job = api.enqueue()
    assert ids(api.get("/jobs", created_before="9999-12-30T11:59:59-12:00")["items"]) == [job["id"]]


def test_an_unknown_queue_has_no_jobs(api: Api) -> None:
    api.enqueue()
    assert api.get("/jobs", queue="no-such-queue") == {"items": []}


@pytest.mark.parametrize("order", ["desc", "asc"])
def test_pages_hold_every_job_once_over_queues_states_and_tables(api: Api, order: str) -> None:
    made = []
    for n in range(9):
        queue = f"{api.queue}-{n % 3}"
        made += [result["job_id"] for result in api.batch(*[{"queue": queue}] * 3)["results"]]
        one, other = api.claim(queues=[queue], max_jobs=2)["jobs"]
        api.complete(one)
        api.fail(other, retryable=False)
    pages = api.pages("/jobs", limit=4, order=order)
    assert [len(page) for page in pages] == [4, 4, 4, 4, 4, 4, 3]
    assert [job["id"] for page in pages for job in page] == sorted(made, reverse=order == "desc")


def test_the_last_page_has_no_cursor_even_when_it_is_full(api: Api) -> None:
    api.enqueue_many(4)
    assert [len(page) for page in api.pages("/jobs", limit=2)] == [2, 2]


def test_jobs_that_come_while_paging_do_not_shift_the_pages(api: Api) -> None:
    made = api.enqueue_many(4)
    first = api.get("/jobs", limit=2)
    api.enqueue_many(2)
    second = api.get("/jobs", limit=2, cursor=first["next_cursor"])
    assert ids(first["items"] + second["items"]) == made[::-1]


def test_without_a_limit_a_page_has_a_hundred(api: Api) -> None:
    api.enqueue_many(101)
    assert [len(page) for page in api.pages("/jobs", queue=api.queue)] == [100, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", 0),
        ("limit", 1001),
        ("limit", "ten"),
        ("state", "done"),
        ("order", "random"),
        ("queue", "a b"),
        ("created_after", "2026-01-01T00:00:00"),
        ("created_after", "yesterday"),
        ("created_after", "infinity"),
        ("created_before", "-1"),
        ("colour", "red"),
        ("cursor", "nonsense"),
        ("cursor", "e30="),
        ("cursor", "W10="),
        ("cursor", "bm90IGpzb24="),
        ("cursor", "eyJpZCI6ICJ4In0="),
        ("cursor", "ä"),
    ],
)
def test_a_bad_parameter_is_pointed_at(api: Api, name: str, value: Any) -> None:
    problem = api.get("/jobs", **{name: value}, status=422)
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("validation_failed", f"/query/{name}")


def test_the_bounds_of_limit_are_allowed(api: Api) -> None:
    api.enqueue_many(2)
    assert [len(api.get("/jobs", limit=limit)["items"]) for limit in (1, 1000)] == [1, 2]
