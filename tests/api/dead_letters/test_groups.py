"""GET /dead-letters/groups, and the error fingerprint."""

from typing import Any

import pytest

from tests.api_client import Api, Json, parse_time
from tests.database import TestDatabase
from tests.table import table


def groups(api: Api, **params: Any) -> list[Json]:
    items: list[Json] = api.get("/dead-letters/groups", **params)["items"]
    return items


@pytest.fixture
def letters(api: Api) -> list[Json]:
    """Three dead letters of queue a (mail twice, push once) and one of queue b; three have the same
    fingerprint.
    """
    fields = [
        ("a", "mail", "user 1 gone"),
        ("a", "mail", "user 22 gone"),
        ("a", "push", "no route"),
        ("b", "mail", "user 3 gone"),
    ]
    return [
        api.dead_letter({"message": text}, queue=f"{api.queue}-{queue}", job_type=job_type)
        for queue, job_type, text in fields
    ]


def test_default_groups_are_by_queue_type_and_fingerprint_largest_first(api: Api, letters: list[Json]) -> None:
    items = groups(api)
    assert [group["count"] for group in items] == [2, 1, 1]
    first = items[0]
    assert (first["queue"], first["job_type"], first["fingerprint"]) == (f"{api.queue}-a", "mail", "error: user # gone")
    dead = [api.get(f"/dead-letters/{letter['id']}")["dead_at"] for letter in letters[:2]]
    assert (first["first_at"], first["last_at"]) == (min(dead, key=parse_time), max(dead, key=parse_time))
    assert first["sample"] in {letter["id"] for letter in letters[:2]}


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("job_type", [("mail", 3), ("push", 1)]),
        ("fingerprint", [("error: user # gone", 3), ("error: no route", 1)]),
    ],
)
def test_dead_letters_are_grouped_by_a_single_field(
    api: Api, letters: list[Json], by: str, expected: list[tuple[str, int]]
) -> None:
    items = groups(api, by=by)
    assert [(group[by], group["count"]) for group in items] == expected
    assert not {"queue", "job_type", "fingerprint"} - {by} & items[0].keys()


def test_dead_letters_are_grouped_by_queue(api: Api, letters: list[Json]) -> None:
    assert [(group["queue"], group["count"]) for group in groups(api, by="queue")] == [
        (f"{api.queue}-a", 3),
        (f"{api.queue}-b", 1),
    ]


def test_queue_with_several_lanes_is_one_group(api: Api, db: TestDatabase) -> None:
    api.dead_letter()
    db.execute("UPDATE queues SET lanes = 8 WHERE name = $1", api.queue)
    api.get("/queues")
    for n in range(5):
        api.dead_letter(group=f"g{n}")
    assert [(group["queue"], group["count"]) for group in groups(api, by="queue")] == [(api.queue, 6)]


def test_dead_letters_are_grouped_by_two_fields(api: Api, letters: list[Json]) -> None:
    items = groups(api, by="queue,job_type")
    assert {(group["queue"][-1], group["job_type"]): group["count"] for group in items} == {
        ("a", "mail"): 2,
        ("a", "push"): 1,
        ("b", "mail"): 1,
    }


def test_groups_contain_only_matching_dead_letters(api: Api, letters: list[Json]) -> None:
    assert [group["count"] for group in groups(api, queue=f"{api.queue}-a", by="fingerprint")] == [2, 1]
    assert groups(api, job_type="fax") == []


@table("params", [{"by": "colour"}, {"by": ""}, {"limit": 3}, {"reason": "a b"}])
def test_invalid_query_parameter_of_groups_is_rejected_with_a_pointer(api: Api, params: dict[str, Any]) -> None:
    problem = api.get("/dead-letters/groups", **params, status=422)
    assert problem["errors"][0]["pointer"] == f"/query/{next(iter(params))}"


@table(
    ("message", "masked"),
    [
        ("timeout after 30 s", "timeout after # s"),
        ("took 1.75 of 2", "took # of #"),
        ("no user 6f9619ff-8b86-d011-b42d-00cf4fc964ff", "no user #"),
        ("object 0xdeadbeef01 and 5f3a9c0b77e1", "object # and #"),
        ("""key "a b" or 'c' or `d` missing""", "key ? or ? or ? missing"),
        ("nothing to mask", "nothing to mask"),
    ],
)
def test_fingerprint_masks_numbers_ids_and_quoted_strings(api: Api, message: str, masked: str) -> None:
    job = api.dead_letter({"message": message, "error_type": "ValueError"})
    assert api.get(f"/dead-letters/{job['id']}")["fingerprint"] == f"ValueError: {masked}"
