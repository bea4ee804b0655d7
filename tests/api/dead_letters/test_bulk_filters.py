"""Bulk actions with an empty filter: rejected unless `all: true` confirms it."""

from tests.api_client import Api, Json

ACTIONS = {
    "/jobs/cancel": {"cancelled": 2},
    "/dead-letters/replay": {"replayed": 2},
    "/dead-letters/purge": {"purged": 2},
}
REJECTED: dict[str, tuple[Json, str]] = {
    "nothing": ({}, "/filter"),
    "an empty filter": ({"filter": {}}, "/filter"),
    "an empty filter, not confirmed": ({"filter": {}, "all": False}, "/filter"),
    "not everything": ({"all": False}, "/filter"),
    "ids and a filter": ({"ids": [], "filter": {"queue": "a"}}, "/filter"),
    "an absent member": ({"filter": {"queue": None}}, "/filter/queue"),
    "an absent filter": ({"filter": None}, "/filter"),
    "an empty list": ({"filter": []}, "/filter"),
    "an empty name": ({"filter": {"queue": ""}}, "/filter/queue"),
    "ids and everything": ({"ids": [], "all": True}, "/all"),
}


def two_jobs(api: Api, path: str) -> None:
    for _ in range(2):
        if path == "/jobs/cancel":
            api.enqueue()
        else:
            api.dead_letter()


def test_bulk_action_with_an_empty_filter_is_rejected(api: Api) -> None:
    pointers = {}
    for path in ACTIONS:
        two_jobs(api, path)
        for name, (body, _) in REJECTED.items():
            problem = api.post(path, {**body, "dry_run": False}, status=422)
            pointers[path, name] = problem["errors"][0]["pointer"]
    assert pointers == {(path, name): pointer for path in ACTIONS for name, (_, pointer) in REJECTED.items()}
    assert api.counts() == {"ready": 2, "dead": 4}


def test_empty_list_of_ids_selects_nothing(api: Api) -> None:
    for path in ACTIONS:
        two_jobs(api, path)
        assert api.post(path, {"ids": [], "dry_run": False})["matched"] == 0
    assert api.counts() == {"ready": 2, "dead": 4}


def test_flag_all_confirms_an_empty_filter(api: Api) -> None:
    for body in ({"filter": {}, "all": True}, {"all": True}, {"filter": {"queue": api.queue}, "all": True}):
        for path, expected in ACTIONS.items():
            api.post("/jobs/cancel", {"all": True})
            two_jobs(api, path)
            dry = api.post(path, {**body, "dry_run": True})
            assert (dry["matched"], dry["dry_run"]) == (2, True), path
            response = api.post(path, {**body, "dry_run": False})
            assert {name: response[name] for name in expected} == expected, path
            assert "dry_run" not in response, path


def test_flag_all_does_not_widen_a_filter(api: Api) -> None:
    two_jobs(api, "/jobs/cancel")
    assert api.post("/jobs/cancel", {"filter": {"queue": f"{api.queue}-other"}, "all": True})["matched"] == 0
