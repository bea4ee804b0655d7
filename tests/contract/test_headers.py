"""What comes with a request and with an answer, around the bodies."""

import socket

import httpx
import pytest

from tests.api import Api
from tests.broker import RunningBroker

JOB = '{"job_type": "test"}'


def test_a_request_id_is_echoed(http: httpx.Client) -> None:
    assert http.get("/livez", headers={"X-Request-Id": "abc-123"}).headers["x-request-id"] == "abc-123"


def test_a_request_without_an_id_gets_one_of_its_own(http: httpx.Client) -> None:
    ids = {http.get(path).headers["x-request-id"] for path in ("/livez", "/livez", "/no/such/path")}
    assert len(ids) == 3


@pytest.mark.parametrize("bad", ["a b", "a\tb", "x" * 121, "ö", '"quoted"'])
def test_a_request_id_that_could_do_harm_is_replaced(bad: str, http: httpx.Client) -> None:
    answered = http.get("/livez", headers={b"X-Request-Id": bad.encode("latin-1")}).headers["x-request-id"]
    assert answered != bad
    assert answered.isalnum()


def test_a_created_job_has_a_location(api: Api) -> None:
    response = api.http.post("/jobs", content=JOB)
    assert response.status_code == 201
    assert api.get(response.headers["location"])["id"] == response.json()["id"]


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8", "nonsense"]
)
def test_json_is_taken_whatever_it_is_called(kind: str, http: httpx.Client) -> None:
    assert http.post("/jobs", content=JOB, headers={"Content-Type": kind}).status_code == 201


def test_json_is_taken_without_a_content_type(broker: RunningBroker, api: Api) -> None:
    """On a raw socket, as every client library adds one."""
    url = httpx.URL(broker.base)
    with socket.create_connection((url.host, url.port or 80)) as connection:
        head = f"POST /jobs HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {len(JOB)}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + JOB).encode())
        assert connection.makefile("rb").readline().split()[1] == b"201"


def test_answers_are_json(api: Api) -> None:
    assert api.http.get("/stats").headers["content-type"] == "application/json"


def test_a_claim_is_not_cached(api: Api) -> None:
    assert api.http.post("/claim", json={"queues": [api.queue]}).headers["cache-control"] == "no-store"


def test_trace_context_is_handed_out_again(api: Api) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    api.http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers={"traceparent": trace})
    assert api.claim_one()["traceparent"] == trace


@pytest.mark.parametrize("key", ["a b", "x" * 121, "a/b", ""])
def test_an_idempotency_key_that_is_no_name_is_refused(key: str, http: httpx.Client) -> None:
    response = http.post("/jobs", content=JOB, headers={"Idempotency-Key": key})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"].lower() == "/header/idempotency-key"
