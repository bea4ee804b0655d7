"""GET /dead-letters/groups, and the error fingerprint."""

import json
from base64 import urlsafe_b64encode
from typing import Any
from uuid import UUID

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


def first_page(api: Api, **params: Any) -> tuple[list[Json], str]:
    body = api.get("/dead-letters/groups", **params)
    return body["items"], body["next_cursor"]


def remaining(api: Api, next_cursor: str | None, **params: Any) -> list[Json]:
    """The groups of all pages from a cursor on."""
    items: list[Json] = []
    while next_cursor:
        body = api.get("/dead-letters/groups", **params, cursor=next_cursor)
        items, next_cursor = items + body["items"], body.get("next_cursor")
    return items


def test_groups_are_paged_largest_first(api: Api, letters: list[Json]) -> None:
    for by in ("queue", "job_type", "fingerprint", "queue,job_type,fingerprint"):
        first, next_cursor = first_page(api, by=by, limit=1)
        assert [*first, *remaining(api, next_cursor, by=by, limit=1)] == groups(api, by=by), by


def test_more_than_a_thousand_groups_can_be_listed(api: Api, db: TestDatabase) -> None:
    letter = api.dead_letter()
    db.execute(
        """
        INSERT INTO dead_letters
        SELECT (json_populate_record(letter, json_build_object(
            'id', longshore_generate_id(letter.lane, letter.dead_at), 'fingerprint', number
        ))).*
        FROM dead_letters AS letter, generate_series(1, 1200) AS number
        WHERE letter.id = $1
        """,
        letter["id"],
    )
    first, next_cursor = first_page(api, limit=1000)
    listed = [group["fingerprint"] for group in (*first, *remaining(api, next_cursor, limit=1000))]
    assert (len(first), len(listed), len(set(listed))) == (1000, 1201, 1201)


def test_no_group_is_left_out_while_counts_change(api: Api) -> None:
    """The second page is read after the third group has become the largest, the first group the
    smallest, and after a group has been added."""
    ids = [api.dead_letter(job_type=name)["id"] for name in ("a", "a", "a", "b", "b", "c")]
    first, next_cursor = first_page(api, by="job_type", limit=1)
    for name in ("c", "c", "c", "d", "d", "d", "d"):
        api.dead_letter(job_type=name)
    api.post("/dead-letters/purge", {"ids": ids[:2], "dry_run": False})
    listed = [(group["job_type"], group["count"]) for group in remaining(api, next_cursor, by="job_type", limit=1)]
    assert [group["job_type"] for group in first] == ["a"]
    assert listed == [("b", 2), ("c", 1), ("a", 1)] or listed == [("b", 2), ("a", 1), ("c", 1)]


def test_groups_contain_only_matching_dead_letters(api: Api, letters: list[Json]) -> None:
    assert [group["count"] for group in groups(api, queue=f"{api.queue}-a", by="fingerprint")] == [2, 1]
    assert groups(api, job_type="fax") == []


def cursor(**changed: str) -> str:
    members = {"count": "1", "sample": str(UUID(int=1)), "latest": "2030-01-01T00:00:00Z", **changed}
    return urlsafe_b64encode(json.dumps(members).encode()).decode()


INVALID_CURSORS = [
    "x",
    cursor(count="many"),
    cursor(count="0"),
    cursor(count="9" * 30),
    cursor(sample="none"),
    cursor(latest="yesterday"),
    cursor(latest="0001-01-01T00:00:00Z"),
]


@table(
    "params",
    [
        {"by": "colour"},
        {"by": ""},
        {"limit": 0},
        {"limit": 1001},
        {"reason": "a b"},
        *[{"cursor": text} for text in INVALID_CURSORS],
    ],
)
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
