"""POST /jobs/cancel."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api_client import Api, Json, parse_time
from tests.table import table


def cancel(api: Api, *, status: int = 200, **body: Any) -> Json:
    answer: Json = api.post("/jobs/cancel", body, status=status)
    return answer


def counts(answer: Json) -> tuple[int, int, int]:
    return answer["matched"], answer["cancelled"], answer["requested"]


def test_bulk_cancel_cancels_waiting_jobs_and_requests_cancellation_of_running_jobs(api: Api) -> None:
    running = api.enqueue()
    api.claim_one()
    ready, later = api.enqueue(), api.enqueue(delay_seconds=60)
    answer = cancel(api, ids=[running["id"], ready["id"], later["id"]])
    assert counts(answer) == (3, 2, 1)
    assert api.counts() == {"running": 1, "cancelled": 2}
    assert "cancel_requested_at" in api.job(running["id"])


def test_ids_of_jobs_that_are_not_live_match_nothing(api: Api) -> None:
    done, dead = api.enqueue(), api.enqueue()
    api.complete(api.claim_one())
    api.fail(api.claim_one(), retryable=False)
    live = api.enqueue()
    ids = [str(uuid4()), done["id"], dead["id"], live["id"], live["id"]]
    assert counts(cancel(api, ids=ids, dry_run=True)) == (1, 0, 0)
    assert counts(cancel(api, ids=ids)) == (1, 1, 0)


def test_dry_run_of_a_bulk_cancel_only_counts(api: Api) -> None:
    ids = api.enqueue_many(3)
    answer = cancel(api, ids=ids, dry_run=True)
    assert (counts(answer), sorted(answer["sample"])) == ((3, 0, 0), ids)
    assert api.counts() == {"ready": 3}


@pytest.mark.parametrize("name", ["queue", "job_type", "group", "tag", "state", "created_after"])
def test_filter_cancels_only_matching_jobs(api: Api, name: str) -> None:
    kept = api.enqueue(queue=f"{api.queue}-kept")
    matching = api.enqueue(job_type="mail", group="g", tags=["t"], delay_seconds=60)
    values = {
        "queue": api.queue,
        "job_type": "mail",
        "group": "g",
        "tag": "t",
        "state": "scheduled",
        "created_after": matching["created_at"],
    }
    assert parse_time(matching["created_at"]) > parse_time(kept["created_at"])
    answer = cancel(api, filter={name: values[name]})
    assert (counts(answer), answer["sample"]) == ((1, 1, 0), [matching["id"]])
    assert api.job(kept["id"])["state"] == "ready"


def test_filter_does_not_match_finished_jobs(api: Api) -> None:
    api.dead_letter()
    api.enqueue()
    api.complete(api.claim_one())
    assert counts(cancel(api, filter={"queue": api.queue})) == (0, 0, 0)
    assert api.counts() == {"completed": 1, "dead": 1}


def test_filter_matches_running_jobs(api: Api) -> None:
    api.enqueue_many(2)
    api.claim(max_jobs=2)
    assert counts(cancel(api, filter={"queue": api.queue, "state": "running"})) == (2, 0, 2)


def test_limit_applies_to_a_filter(api: Api) -> None:
    api.enqueue_many(5)
    answer = cancel(api, filter={"queue": api.queue}, limit=2)
    assert (counts(answer), answer["remaining"], len(answer["sample"])) == ((5, 2, 0), 3, 2)
    assert api.counts() == {"ready": 3, "cancelled": 2}


def test_limit_applies_to_ids(api: Api) -> None:
    ids = api.enqueue_many(3)
    answer = cancel(api, ids=ids, limit=1)
    assert (counts(answer), answer["remaining"]) == ((3, 1, 0), 2)
    assert api.job(ids[0])["state"] == "cancelled"


def test_remaining_is_0_if_the_limit_is_the_number_of_matching_jobs(api: Api) -> None:
    ids = api.enqueue_many(3)
    assert cancel(api, ids=ids, limit=3)["remaining"] == 0


def test_dry_run_counts_the_jobs_beyond_the_limit(api: Api) -> None:
    api.enqueue_many(5)
    answer = cancel(api, filter={"queue": api.queue}, limit=2, dry_run=True)
    assert (counts(answer), answer["remaining"]) == ((5, 0, 0), 5)
    assert api.counts() == {"ready": 5}


@pytest.mark.slow
def test_jobs_remain_after_a_bulk_cancel_with_the_largest_limit(api: Api) -> None:
    for _ in range(11):
        api.enqueue_many(1000)
    answer = cancel(api, filter={"queue": api.queue}, limit=10_000)
    assert (counts(answer), answer["remaining"]) == ((10_001, 10_000, 0), 1)
    answer = cancel(api, filter={"queue": api.queue}, limit=10_000)
    assert (counts(answer), answer["remaining"]) == ((1000, 1000, 0), 0)


def test_filter_without_queue_spans_all_queues(api: Api) -> None:
    api.batch(*[{"queue": f"{api.queue}-{n}", "job_type": "mail"} for n in range(4)])
    assert counts(cancel(api, filter={"job_type": "mail"})) == (4, 4, 0)


@table(
    ("body", "pointer"),
    [
        ({}, "/filter"),
        ({"ids": [], "filter": {}}, "/filter"),
        ({"filter": {"state": "completed"}}, "/filter/state"),
        ({"filter": {"state": "gone"}}, "/filter/state"),
        ({"filter": {"colour": "red"}}, "/filter/colour"),
        ({"ids": ["42"]}, "/ids/0"),
        ({"ids": [], "limit": 0}, "/limit"),
        ({"ids": [], "dryrun": True}, "/dryrun"),
    ],
)
def test_problem_points_at_the_invalid_part_of_a_bulk_cancel(api: Api, body: Any, pointer: str) -> None:
    assert cancel(api, **body, status=422)["errors"][0]["pointer"] == pointer
