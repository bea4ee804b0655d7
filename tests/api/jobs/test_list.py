"""GET /jobs."""

from typing import Any

import pytest

from tests.api_client import Api, Json, parse_time
from tests.table import table


def ids(jobs: list[Json]) -> list[str]:
    return [job["id"] for job in jobs]


@pytest.fixture
def jobs_by_state(api: Api) -> dict[str, str]:
    """One job in each state except blocked: state -> id."""
    states = {"completed": api.enqueue()}
    api.complete(api.claim_one())
    states["dead"] = api.dead_letter()
    states["cancelled"] = api.enqueue()
    api.cancel(states["cancelled"])
    states["running"] = api.enqueue()
    api.claim_one()
    states["ready"] = api.enqueue()
    states["scheduled"] = api.enqueue(delay_seconds=60)
    return {state: job["id"] for state, job in states.items()}


def test_jobs_of_all_states_are_listed_newest_first(api: Api, jobs_by_state: dict[str, str]) -> None:
    assert ids(api.get("/jobs")["items"]) == sorted(jobs_by_state.values(), reverse=True)
    assert ids(api.get("/jobs", order="asc")["items"]) == sorted(jobs_by_state.values())


def test_listed_job_equals_the_job_read_by_id(api: Api, jobs_by_state: dict[str, str]) -> None:
    listed = api.get("/jobs", queue=api.queue)["items"]
    assert listed == [api.job(job["id"]) for job in listed]


@table("state", ["scheduled", "ready", "running", "completed", "dead", "cancelled"])
def test_list_filters_by_state(api: Api, jobs_by_state: dict[str, str], state: str) -> None:
    found = api.get("/jobs", state=state)["items"]
    assert [(job["id"], job["state"]) for job in found] == [(jobs_by_state[state], state)]


def test_filter_by_blocked_finds_no_job_of_another_state(api: Api, jobs_by_state: dict[str, str]) -> None:
    assert api.get("/jobs", state="blocked") == {"items": []}


def test_each_filter_returns_only_matching_jobs(api: Api) -> None:
    matching = api.enqueue(queue=f"{api.queue}-a", job_type="mail", group="g1", tags=["x", "y"])
    api.enqueue(queue=f"{api.queue}-b", job_type="other", group="g2", tags=["xx"])
    api.enqueue()
    values: Json = {"queue": f"{api.queue}-a", "job_type": "mail", "group": "g1", "tag": "y"}
    for name, value in values.items():
        assert ids(api.get("/jobs", **{name: value})["items"]) == [matching["id"]], name


def test_listed_jobs_match_all_filters(api: Api) -> None:
    api.enqueue(job_type="a", tags=["t"])
    both = api.enqueue(job_type="b", tags=["t"])
    assert ids(api.get("/jobs", job_type="b", tag="t", queue=api.queue, state="ready")["items"]) == [both["id"]]
    assert api.get("/jobs", job_type="b", tag="t", state="running") == {"items": []}


def test_filters_match_finished_and_dead_jobs(api: Api) -> None:
    dead = api.dead_letter(job_type="a", tags=["t"], group="g")
    done = api.enqueue(job_type="a", tags=["t"], group="g")
    api.complete(api.claim_one())
    api.enqueue(job_type="b")
    assert ids(api.get("/jobs", job_type="a", tag="t", group="g")["items"]) == [done["id"], dead["id"]]


def test_created_after_is_inclusive_and_created_before_is_exclusive(api: Api) -> None:
    first = api.enqueue()
    api.complete(api.claim_one())
    second = api.enqueue(run_at="2020-01-01T00:00:00Z")
    assert parse_time(second["created_at"]) > parse_time(first["created_at"])
    assert ids(api.get("/jobs", created_after=second["created_at"])["items"]) == [second["id"]]
    assert ids(api.get("/jobs", created_before=second["created_at"])["items"]) == [first["id"]]


@pytest.mark.parametrize("instant", ["1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00"])
def test_created_after_the_epoch_matches_all_jobs(api: Api, instant: str) -> None:
    job = api.enqueue()
    assert ids(api.get("/jobs", created_after=instant)["items"]) == [job["id"]]
    assert api.get("/jobs", created_before=instant) == {"items": []}


def test_created_before_the_year_10000_matches_all_jobs(api: Api) -> None:
    job = api.enqueue()
    assert ids(api.get("/jobs", created_before="9999-12-30T11:59:59-12:00")["items"]) == [job["id"]]


def test_list_of_an_unknown_queue_is_empty(api: Api) -> None:
    api.enqueue()
    assert api.get("/jobs", queue="no-such-queue") == {"items": []}


@pytest.mark.parametrize("order", ["desc", "asc"])
def test_pages_contain_every_job_of_all_queues_states_and_tables_once(api: Api, order: str) -> None:
    ids_made = []
    for n in range(9):
        queue = f"{api.queue}-{n % 3}"
        ids_made += [result["job_id"] for result in api.batch(*[{"queue": queue}] * 3)["results"]]
        completed, failed = api.claim(queues=[queue], max_jobs=2)["jobs"]
        api.complete(completed)
        api.fail(failed, retryable=False)
    pages = api.pages("/jobs", limit=4, order=order)
    assert [len(page) for page in pages] == [4, 4, 4, 4, 4, 4, 3]
    assert [job["id"] for page in pages for job in page] == sorted(ids_made, reverse=order == "desc")


def test_full_last_page_has_no_cursor(api: Api) -> None:
    api.enqueue_many(4)
    assert [len(page) for page in api.pages("/jobs", limit=2)] == [2, 2]


def test_jobs_enqueued_while_paging_do_not_shift_the_pages(api: Api) -> None:
    ids_made = api.enqueue_many(4)
    first = api.get("/jobs", limit=2)
    api.enqueue_many(2)
    second = api.get("/jobs", limit=2, cursor=first["next_cursor"])
    assert ids(first["items"] + second["items"]) == ids_made[::-1]


def test_page_has_a_hundred_jobs_by_default(api: Api) -> None:
    api.enqueue_many(101)
    assert [len(page) for page in api.pages("/jobs", queue=api.queue)] == [100, 1]


@table(
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
def test_problem_points_at_the_invalid_query_parameter_of_a_list(api: Api, name: str, value: Any) -> None:
    problem = api.get("/jobs", **{name: value}, status=422)
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("validation_failed", f"/query/{name}")


def test_smallest_and_largest_limit_are_accepted(api: Api) -> None:
    api.enqueue_many(2)
    assert [len(api.get("/jobs", limit=limit)["items"]) for limit in (1, 1000)] == [1, 2]
