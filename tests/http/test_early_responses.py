"""Responses that depend on the head alone are sent before a large body arrives.

A body of at most 64 KiB is received first, so that its connection stays usable.
"""

from collections.abc import Iterator

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, create_database
from tests.http.conftest import Connect, connections
from tests.http.raw_connection import GET, chunked, post

FAST, FRAMEWORK = "/jobs/batch", "/jobs/cancel"
LARGE = 100_000
NO_IDS = b'{"ids": []}'


def head(path: str, *headers: bytes) -> bytes:
    """A head without its body, which is large."""
    return b"\r\n".join([f"POST {path} HTTP/1.1".encode(), b"Host: test", *headers]) + b"\r\n\r\n"


def heads(path: str, *headers: bytes) -> dict[str, bytes]:
    return {
        "declared": head(path, b"Content-Length: %d" % LARGE, *headers),
        "chunked": chunked(path, *headers),
        "expect": head(path, b"Content-Length: 2", b"Expect: 100-continue", *headers),
    }


@pytest.fixture(scope="module")
def connect_keyed(postgres: str, loop: Loop) -> Iterator[Connect]:
    """Connects to a broker that requires a key."""
    with threaded_broker(TEST_SETTINGS, create_database(postgres, loop, "early responses")) as broker:
        broker.http.post("/api-keys", json={"name": "admin", "scopes": ["admin"]}).raise_for_status()
        with connections(broker.base) as connect:
            yield connect


@pytest.mark.parametrize("path", [FAST, FRAMEWORK])
@pytest.mark.parametrize("kind", ["declared", "chunked", "expect"])
def test_unauthenticated_caller_is_rejected_at_the_head(connect_keyed: Connect, path: str, kind: str) -> None:
    connection = connect_keyed()
    connection.send(heads(path)[kind])
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"]) == (401, "close")


@pytest.mark.parametrize("path", [FAST, FRAMEWORK])
@pytest.mark.parametrize("kind", ["declared", "chunked", "expect"])
def test_encoded_body_is_rejected_at_the_head(connect: Connect, path: str, kind: str) -> None:
    connection = connect()
    connection.send(heads(path, b"Content-Encoding: gzip")[kind])
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"]) == (415, "close")


@pytest.mark.parametrize("path", [FAST, FRAMEWORK])
def test_too_large_content_length_is_rejected_at_the_head(connect: Connect, path: str) -> None:
    connection = connect()
    connection.send(head(path, b"Content-Length: 9000000"))
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"]) == (413, "close")


def test_invalid_query_of_a_fast_route_is_rejected_at_the_head(connect: Connect) -> None:
    connection = connect()
    connection.send(heads(f"{FAST}?x=1")["declared"])
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"]) == (422, "close")


def test_invalid_job_id_is_rejected_at_the_head(connect: Connect) -> None:
    connection = connect()
    connection.send(heads("/jobs/none/complete", b"Content-Encoding: gzip")["declared"])
    (response,) = connection.responses()
    assert (response.status, response.json()["errors"][0]["pointer"]) == (422, "/path/job_id")


def test_large_body_that_arrived_before_the_response_keeps_the_connection_alive(connect: Connect, api: Api) -> None:
    connection = connect()
    job = b'{"job_type": "test", "queue": "%s"}' % api.queue.encode()
    connection.send(post("/jobs", job + b" " * LARGE) + post("/jobs/cancel", NO_IDS + b" " * LARGE) + GET)
    responses = [connection.response() for _ in range(3)]
    assert [response.status for response in responses] == [201, 200, 200]
    assert [response.headers.get("connection") for response in responses] == [None] * 3


def test_fast_route_answers_expect_with_100(connect: Connect, api: Api) -> None:
    connection = connect()
    job = b'{"job_type": "test", "queue": "%s"}' % api.queue.encode()
    connection.send(post("/jobs", job, b"Expect: 100-continue").removesuffix(job))
    assert connection.response().status == 100
    connection.send(job + GET)
    assert [connection.response().status, connection.response().status] == [201, 200]


def test_pipelined_expect_is_answered_after_the_response_before_it(connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(GET + post(FRAMEWORK, NO_IDS, b"Expect: 100-continue").removesuffix(NO_IDS))
    assert [connection.response().status, connection.response().status] == [200, 100]
    connection.send(NO_IDS)
    assert connection.response().status == 200


def test_body_that_arrives_with_its_head_needs_no_100(connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(post(FRAMEWORK, NO_IDS, b"Expect: 100-continue") + GET)
    assert [connection.response().status, connection.response().status] == [200, 200]


def test_client_that_disconnects_during_an_upload_does_not_affect_others(
    broker: RunningBroker, connect: Connect, api: Api
) -> None:
    job = b'{"job_type": "test", "queue": "%s"}' % api.queue.encode()
    for path in (FAST, FRAMEWORK, "/jobs"):
        connection = connect()
        connection.send(heads(path)["declared"] + job)
        connection.close()
    assert api.get("/jobs", queue=api.queue)["items"] == []
