"""One reading of every request: what could be read in two ways is refused, once, and nothing after it is served (A23)."""

import pytest

from tests.api import Api
from tests.edge.conftest import Connect
from tests.edge.raw import GET, check_refusal, chunk, chunked, post
from tests.edge.smuggling import REFUSED, TAKEN


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused_once(name: str, connect: Connect) -> None:
    raw = connect()
    raw.send(REFUSED[name] + GET)
    assert raw.refusal().status == 400


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_byte_by_byte_too(name: str, connect: Connect) -> None:
    raw = connect()
    raw.send(*[bytes([byte]) for byte in REFUSED[name]], GET)
    assert raw.refusal().status == 400


@pytest.mark.parametrize("name", TAKEN)
def test_what_has_one_meaning_is_served_and_so_is_the_next(name: str, connect: Connect, api: Api) -> None:
    raw = connect()
    raw.send(TAKEN[name] + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert [answer.status for answer in raw.answers()] == [200, 200]


def test_http_1_0_needs_no_host(connect: Connect) -> None:
    raw = connect()
    raw.send(b"GET /livez HTTP/1.0\r\n\r\n")
    assert [answer.status for answer in raw.answers()] == [200]


def test_a_bad_request_behind_a_good_one_is_refused_after_the_answer(connect: Connect) -> None:
    raw = connect()
    raw.send(GET + GET + REFUSED["two hosts"] + GET)
    first, second, refused = raw.answers()
    assert (first.status, second.status, refused.status) == (200, 200, 400)
    check_refusal(refused)


def test_a_body_that_goes_wrong_is_answered_once(connect: Connect, api: Api) -> None:
    """Its handler is already reading."""
    raw = connect()
    raw.send(chunked("/jobs") + chunk(b'{"job_type": "test", '))
    assert api.get("/livez")
    raw.send(b"not a chunk\r\n" + GET)
    assert raw.refusal().status == 400


def test_a_bad_body_behind_a_good_request_is_refused_after_the_answer(connect: Connect, api: Api) -> None:
    raw = connect()
    raw.send(GET + chunked("/jobs") + b"not a chunk\r\n" + GET)
    first, refused = raw.answers()
    assert (first.status, refused.status) == (200, 400)


def test_a_trailer_does_not_pass_for_a_header(connect: Connect, api: Api) -> None:
    raw = connect()
    body = b'{"job_type": "test", "queue": "%s"}' % api.queue.encode()
    raw.send(
        chunked("/jobs", b"Connection: close")
        + chunk(body)
        + b"0\r\nX-Request-Id: from-a-trailer\r\nIdempotency-Key: k\r\n\r\n"
    )
    (answer,) = raw.answers()
    assert answer.status == 201
    assert answer.headers["x-request-id"] != "from-a-trailer"
    again = api.http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers={"Idempotency-Key": "k"})
    assert again.json()["id"] != answer.json()["id"]


def test_requests_sent_ahead_are_answered_in_their_order(connect: Connect, api: Api) -> None:
    raw = connect()
    names = [f"request-{number}" for number in range(50)]
    raw.send(b"".join(post("/jobs/cancel", b'{"ids": []}', f"X-Request-Id: {name}".encode()) for name in names))
    assert [raw.answer().headers["x-request-id"] for _ in names] == names


def test_too_many_requests_sent_ahead_are_refused_after_the_answers(connect: Connect) -> None:
    raw = connect()
    raw.send(GET * 1000)
    *answers, refused = raw.answers()
    assert {answer.status for answer in answers} == {200}
    assert 100 <= len(answers) < 1000
    assert refused.status == 400
