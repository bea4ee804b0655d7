"""HEAD works wherever GET does: the same status and headers, and no body."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.api import Api
from tests.broker import RunningBroker
from tests.contract.arrangements import ARRANGED, example, with_real_names
from tests.contract.conftest import Served
from tests.contract.document import operations
from tests.edge.raw import Raw

UNKNOWN = "0198c0de-0000-7000-8000-000000000000"
OTHERS = [
    "/docs",
    "/docs/swagger-ui.css",
    "/docs/start.js",
    "/openapi.json",
    "/no/such/path",
    f"/jobs/{UNKNOWN}",
    "/jobs/4711",
    "/jobs?limit=0",
    "/claim",
]
VARYING = {"date", "x-request-id"}


def test_head_of_every_operation_has_the_status_and_headers_of_get(serving: Served) -> None:
    mismatches = []
    for found in operations():
        if found.method == "GET":
            api = serving(found.name)
            path = with_real_names(example(found.name)["request"], ARRANGED[found.name](api))["path"]
            mismatches += mismatches_between_head_and_get(api.http, path)
    assert mismatches == []


def test_head_of_other_paths_has_the_status_and_headers_of_get(http: httpx.Client) -> None:
    assert [mismatch for path in OTHERS for mismatch in mismatches_between_head_and_get(http, path)] == []


def mismatches_between_head_and_get(http: httpx.Client, path: str) -> list[str]:
    head, get = http.head(path), http.get(path)
    ignored = VARYING | (
        {"content-length"} if "content-length" in head.headers and path in ("/metrics", "/readyz") else set()
    )
    mine, theirs = (
        {name: value for name, value in answer.headers.items() if name not in ignored} for answer in (head, get)
    )
    if (head.status_code, mine, head.content) == (get.status_code, theirs, b""):
        return []
    return [f"{path}: {head.status_code} {mine} {head.content!r}, GET {get.status_code} {theirs}"]


def test_head_needs_the_key_of_get(keyed: Api) -> None:
    key = keyed.http.headers.pop("Authorization")
    try:
        without = [keyed.http.head(path).status_code for path in ("/jobs", "/metrics", "/livez")]
    finally:
        keyed.http.headers["Authorization"] = key
    assert without == [401, 401, 200]
    assert [keyed.http.head(path).status_code for path in ("/jobs", "/metrics", "/livez")] == [200, 200, 200]


def test_head_sends_no_byte_of_a_body(broker: RunningBroker) -> None:
    received = {}
    for path in ("/livez", "/docs/swagger-ui.css", "/no/such/path"):
        raw = Raw(broker.base)
        raw.send(f"HEAD {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        received[path] = raw.received().partition(b"\r\n\r\n")[2]
        raw.close()
    assert received == dict.fromkeys(received, b"")


def test_head_is_counted_under_the_operation_of_get(api: Api) -> None:
    before = limits_requests(api)
    api.http.head("/limits")
    assert limits_requests(api) == before + 1


def limits_requests(api: Api) -> float:
    families = text_string_to_metric_families(api.http.get("/metrics").text)
    labels = {"operation": "get_limits", "status": "2xx"}
    samples = [
        sample for family in families for sample in family.samples if sample.name == "longshore_request_seconds_count"
    ]
    return sum(sample.value for sample in samples if sample.labels == labels)
