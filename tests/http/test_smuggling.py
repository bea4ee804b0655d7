"""Request smuggling: ambiguous requests are rejected once, and no request after them is served.

See docs/reliability/faults.md#a23.
"""

from tests.api_client import Api
from tests.http.conftest import Connect
from tests.http.raw_connection import GET, check_error_response, chunk, chunked, post
from tests.http.smuggling import ACCEPTED, REJECTED
from tests.table import table


@table("name", REJECTED)
def test_ambiguous_request_is_rejected_once(name: str, connect: Connect) -> None:
    connection = connect()
    connection.send(REJECTED[name] + GET)
    assert connection.error_response().status == 400


@table("name", REJECTED)
def test_ambiguous_request_sent_byte_by_byte_is_rejected_once(name: str, connect: Connect) -> None:
    connection = connect()
    connection.send(*[bytes([byte]) for byte in REJECTED[name]], GET)
    assert connection.error_response().status == 400


@table(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of a TLS hello
        b"NO-METHOD /livez HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /livez HTTP/3.0\r\nHost: test\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_error_for_another_protocol_says_that_the_port_speaks_http(data: bytes, connect: Connect) -> None:
    connection = connect()
    connection.send(data)
    detail = connection.error_response().json()["detail"]
    assert detail == "the request line is not valid HTTP/1.1; this port speaks plain HTTP"


@table("name", ACCEPTED)
def test_unambiguous_request_and_the_next_one_are_served(name: str, connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(ACCEPTED[name] + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert [response.status for response in connection.responses()] == [200, 200]


def test_http_1_0_needs_no_host_header(connect: Connect) -> None:
    connection = connect()
    connection.send(b"GET /livez HTTP/1.0\r\n\r\n")
    assert [response.status for response in connection.responses()] == [200]


def test_pipelined_invalid_request_is_rejected_after_the_responses_before_it(connect: Connect) -> None:
    connection = connect()
    connection.send(GET + GET + REJECTED["two hosts"] + GET)
    first, second, rejected = connection.responses()
    assert (first.status, second.status, rejected.status) == (200, 200, 400)
    check_error_response(rejected)


def test_request_whose_body_becomes_invalid_gets_one_response(connect: Connect, api: Api) -> None:
    """The handler is already reading the body."""
    connection = connect()
    connection.send(chunked("/jobs") + chunk(b'{"job_type": "test", '))
    assert api.get("/livez")
    connection.send(b"not a chunk\r\n" + GET)
    assert connection.error_response().status == 400


def test_pipelined_invalid_body_is_rejected_after_the_response_before_it(connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(GET + chunked("/jobs") + b"not a chunk\r\n" + GET)
    first, rejected = connection.responses()
    assert (first.status, rejected.status) == (200, 400)


def test_trailer_is_not_read_as_a_header(connect: Connect, api: Api) -> None:
    connection = connect()
    body = b'{"job_type": "test", "queue": "%s"}' % api.queue.encode()
    connection.send(
        chunked("/jobs", b"Connection: close")
        + chunk(body)
        + b"0\r\nX-Request-Id: from-a-trailer\r\nIdempotency-Key: k\r\n\r\n"
    )
    (response,) = connection.responses()
    assert response.status == 201
    assert response.headers["x-request-id"] != "from-a-trailer"
    again = api.http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers={"Idempotency-Key": "k"})
    assert again.json()["id"] != response.json()["id"]


def test_pipelined_requests_are_answered_in_order(connect: Connect, api: Api) -> None:
    connection = connect()
    names = [f"request-{number}" for number in range(50)]
    connection.send(b"".join(post("/jobs/cancel", b'{"ids": []}', f"X-Request-Id: {name}".encode()) for name in names))
    assert [connection.response().headers["x-request-id"] for _ in names] == names


def test_too_many_pipelined_requests_are_rejected_after_the_responses_before_them(connect: Connect) -> None:
    connection = connect()
    connection.send(GET * 1000)
    *responses, rejected = connection.responses()
    assert {response.status for response in responses} == {200}
    assert 100 <= len(responses) < 1000
    assert rejected.status == 400
