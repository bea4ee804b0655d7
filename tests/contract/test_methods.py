"""Methods and paths: wrong methods, and names that equal a part of another path."""

import re
from collections import defaultdict
from http import HTTPMethod

import httpx

from tests.api_client import Api
from tests.contract.document import Operation, operations
from tests.contract.test_unexpected_input import example_path
from tests.table import every_case

NAME_PARAMETER = re.compile(r"\{(name|worker_id)\}")
METHODS = [method.value for method in HTTPMethod if method not in ("CONNECT", "TRACE")]


def allowed_methods() -> dict[str, set[str]]:
    """The methods of each path of the document. HEAD works wherever GET does."""
    methods: dict[str, set[str]] = defaultdict(set)
    for found in operations():
        methods[found.path] |= {found.method, "HEAD"} if found.method == "GET" else {found.method}
        for other in operations():
            if is_path_of(found, other.path):
                methods[other.path] |= {found.method, "HEAD"} if found.method == "GET" else {found.method}
    return methods


def is_path_of(operation: Operation, path: str) -> bool:
    """Whether the path can also be one of the operation: with a name that equals a part of it."""
    pattern = "[^/]+".join(re.escape(part) for part in NAME_PARAMETER.split(operation.path)[::2])
    return operation.path != path and re.fullmatch(pattern, path) is not None


def test_wrong_method_is_405_and_lists_the_right_ones(http: httpx.Client) -> None:
    with every_case() as case:
        for path, allowed in allowed_methods().items():
            example = example_path(Operation("", path, {}))
            for method in sorted(set(METHODS) - allowed):
                with case(f"{method} {path}"):
                    response = http.request(method, example)
                    assert response.status_code == 405
                    assert response.headers["allow"] == ", ".join(sorted(allowed))
                    assert method == "HEAD" or response.json()["code"] == "method_not_allowed"
                    assert method == "HEAD" or response.json()["detail"] == (
                        f"there is no {method} {example}; the path supports {response.headers['allow']}"
                    )


def test_no_name_hides_an_operation() -> None:
    """A name may equal a part of another path only if no method is at both paths."""
    collisions = [
        (found.name, other.name)
        for found in operations()
        for other in operations()
        if found.method == other.method and is_path_of(found, other.path)
    ]
    assert collisions == []


def test_schedule_named_like_a_path_is_addressable(api: Api) -> None:
    body = {"every_seconds": 3600, "job": {"job_type": "test", "queue": api.queue}}
    api.put("/schedules/preview", body)
    assert api.get("/schedules/preview")["name"] == "preview"
    assert "runs" in api.post("/schedules/preview", {"every_seconds": 60})
    assert api.post("/schedules/preview/pause")["paused"] is True
    assert api.post("/schedules/preview/run", status=201)["schedule"] == "preview"
    assert api.delete("/schedules/preview")["name"] == "preview"
    api.get("/schedules/preview", status=404)
