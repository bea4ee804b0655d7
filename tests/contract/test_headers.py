"""Headers of requests and responses."""

import socket

import httpx

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.http.raw_connection import RawConnection, RawResponse, post
from tests.table import table

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
JOB = '{"job_type": "test"}'


def test_request_id_of_the_client_is_returned(http: httpx.Client) -> None:
    assert http.get("/livez", headers={"X-Request-Id": "abc-123"}).headers["x-request-id"] == "abc-123"


def test_first_of_several_request_ids_is_returned(http: httpx.Client) -> None:
    headers = [("X-Request-Id", "first"), ("X-Request-Id", "second")]
    assert http.get("/livez", headers=headers).headers["x-request-id"] == "first"


def test_request_without_an_id_gets_a_unique_one(http: httpx.Client) -> None:
    ids = {http.get(path).headers["x-request-id"] for path in ("/livez", "/livez", "/no/such/path")}
    assert len(ids) == 3


@table("unsafe", ["a b", "a\tb", "x" * 121, "ö", '"quoted"'])
def test_unsafe_request_id_is_replaced(unsafe: str, http: httpx.Client) -> None:
    returned = http.get("/livez", headers={b"X-Request-Id": unsafe.encode("latin-1")}).headers["x-request-id"]
    assert returned != unsafe
    assert returned.isalnum()


def test_created_job_has_a_location_header(api: Api) -> None:
    response = api.http.post("/jobs", content=JOB)
    assert response.status_code == 201
    assert api.get(response.headers["location"])["id"] == response.json()["id"]


@table(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8", "nonsense"]
)
def test_any_content_type_is_accepted(content_type: str, http: httpx.Client) -> None:
    assert http.post("/jobs", content=JOB, headers={"Content-Type": content_type}).status_code == 201


def test_missing_content_type_is_accepted(broker: RunningBroker, api: Api) -> None:
    """Uses a raw socket, because every client library adds a content type."""
    url = httpx.URL(broker.base)
    with socket.create_connection((url.host, url.port or 80)) as connection:
        head = f"POST /jobs HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {len(JOB)}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + JOB).encode())
        assert connection.makefile("rb").readline().split()[1] == b"201"


def test_responses_have_the_json_content_type(api: Api) -> None:
    assert api.http.get("/stats").headers["content-type"] == "application/json"


def test_claim_response_must_not_be_cached(api: Api) -> None:
    assert api.http.post("/claim", json={"queues": [api.queue]}).headers["cache-control"] == "no-store"


def send(broker: RunningBroker, path: str, body: str, *headers: str) -> RawResponse:
    """Uses a raw socket, because client libraries may merge headers of the same name."""
    connection = RawConnection(broker.base)
    connection.send(post(path, body.encode(), *[line.encode() for line in headers], b"Connection: close"))
    (response,) = connection.responses()
    connection.close()
    return response


def test_trace_context_is_delivered_with_the_job(api: Api) -> None:
    api.http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers={"traceparent": TRACE})
    assert api.claim_one()["traceparent"] == TRACE


@table(
    ("headers", "delivered"),
    [
        ([f"traceparent: {TRACE}", "tracestate: a=1"], (TRACE, "a=1")),
        ([f"traceparent: {TRACE}", "tracestate: a=1", "tracestate: b=2"], (TRACE, "a=1,b=2")),
        ([f"traceparent: {TRACE}", "tracestate: " + "a" * 300, "tracestate: " + "b" * 300], (TRACE, None)),
        ([f"traceparent: {TRACE}", f"traceparent: {TRACE}", "tracestate: a=1"], (None, None)),
        ([f"traceparent: {TRACE}", f"traceparent: {TRACE[:-1]}0"], (None, None)),
        (["traceparent: " + "x" * 513, "tracestate: a=1"], (None, None)),
        (["tracestate: a=1"], (None, None)),
    ],
)
def test_trace_context_that_is_not_valid_is_ignored(
    headers: list[str], delivered: tuple[str | None, str | None], broker: RunningBroker, api: Api
) -> None:
    assert send(broker, "/jobs", f'{{"job_type": "test", "queue": "{api.queue}"}}', *headers).status == 201
    claimed = api.claim_one()
    assert (claimed.get("traceparent"), claimed.get("tracestate")) == delivered


@table(
    "headers",
    [
        ["Idempotency-Key: a", "Idempotency-Key: b"],
        ["Idempotency-Key: a", "idempotency-key: a"],
        ["Authorization: Bearer a", "Authorization: Bearer b"],
    ],
)
@table(
    ("path", "body"),
    [
        ("/jobs", JOB),
        ("/jobs/batch", f'{{"jobs": [{JOB}]}}'),
        ("/claim", '{"queues": ["default"]}'),
        ("/jobs/cancel", '{"filter": {"queue": "default"}}'),
    ],
)
def test_repeated_header_with_a_single_value_is_rejected_and_nothing_changes(
    headers: list[str], path: str, body: str, broker: RunningBroker, api: Api
) -> None:
    api.enqueue(queue="default")
    before = api.get("/jobs")
    response = send(broker, path, body, *headers)
    assert (response.status, response.json()["code"]) == (400, "bad_request")
    assert f"expected one {headers[0].partition(':')[0]} header, got 2" in response.json()["detail"]
    assert api.get("/jobs") == before


@table("key", ["a b", "x" * 121, "a/b", ""])
def test_invalid_idempotency_key_is_rejected(key: str, http: httpx.Client) -> None:
    response = http.post("/jobs", content=JOB, headers={"Idempotency-Key": key})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"].lower() == "/header/idempotency-key"
