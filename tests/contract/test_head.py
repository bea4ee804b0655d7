"""HEAD works wherever GET does: the same status and headers, and no body."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.contract.conftest import ApiFor
from tests.contract.document import operations
from tests.contract.example_setup import SETUPS, example, with_real_ids
from tests.http.raw_connection import RawConnection

UNKNOWN = "0198c0de-0000-7000-8000-000000000000"
OTHER_PATHS = [
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
VARYING_HEADERS = {"date", "x-request-id"}


def test_head_of_every_operation_has_the_status_and_headers_of_get(api_for: ApiFor) -> None:
    mismatches = []
    for found in operations():
        if found.method == "GET":
            api = api_for(found.name)
            path = with_real_ids(example(found.name)["request"], SETUPS[found.name](api))["path"]
            mismatches += mismatches_between_head_and_get(api.http, path)
    assert mismatches == []


def test_head_of_other_paths_has_the_status_and_headers_of_get(http: httpx.Client) -> None:
    assert [mismatch for path in OTHER_PATHS for mismatch in mismatches_between_head_and_get(http, path)] == []


def mismatches_between_head_and_get(http: httpx.Client, path: str) -> list[str]:
    head, get = http.head(path), http.get(path)
    ignored = VARYING_HEADERS | (
        {"content-length"} if "content-length" in head.headers and path in ("/metrics", "/readyz") else set()
    )
    head_headers, get_headers = (
        {name: value for name, value in response.headers.items() if name not in ignored} for response in (head, get)
    )
    if (head.status_code, head_headers, head.content) == (get.status_code, get_headers, b""):
        return []
    return [f"{path}: {head.status_code} {head_headers} {head.content!r}, GET {get.status_code} {get_headers}"]


def test_head_needs_the_key_of_get(keyed_api: Api) -> None:
    key = keyed_api.http.headers.pop("Authorization")
    try:
        statuses_without_key = [keyed_api.http.head(path).status_code for path in ("/jobs", "/metrics", "/livez")]
    finally:
        keyed_api.http.headers["Authorization"] = key
    assert statuses_without_key == [401, 401, 200]
    assert [keyed_api.http.head(path).status_code for path in ("/jobs", "/metrics", "/livez")] == [200, 200, 200]


def test_head_sends_no_byte_of_a_body(broker: RunningBroker) -> None:
    received = {}
    for path in ("/livez", "/docs/swagger-ui.css", "/no/such/path"):
        connection = RawConnection(broker.base)
        connection.send(f"HEAD {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        received[path] = connection.received().partition(b"\r\n\r\n")[2]
        connection.close()
    assert received == dict.fromkeys(received, b"")


def test_head_is_counted_under_the_operation_of_get(api: Api) -> None:
    before = limits_requests(api)
    api.http.head("/limits")
    assert limits_requests(api) == before + 1


def limits_requests(api: Api) -> float:
    metrics = text_string_to_metric_families(api.http.get("/metrics").text)
    labels = {"operation": "get_limits", "status": "2xx"}
    samples = [
        sample for metric in metrics for sample in metric.samples if sample.name == "longshore_request_seconds_count"
    ]
    return sum(sample.value for sample in samples if sample.labels == labels)
