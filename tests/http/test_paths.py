"""Percent escapes in paths: an encoded character is part of a name, never of another route."""

from tests.api_client import Api
from tests.http.conftest import Connect

UNKNOWN = "0198c0de-0000-7000-8000-000000000000"


def test_encoded_slash_is_no_path_separator(connect: Connect, api: Api) -> None:
    """Every path here would be a route if the encoded slash were a separator."""
    api.enqueue(queue="inner")
    expected = {
        "GET /queues%2Finner": 404,
        "GET /queues/inner%2Fstats": 422,
        "GET /queues/inner%2fstats": 422,
        "GET /%2Flivez": 404,
        "GET %2Flivez": 400,
        "GET /livez%2F": 404,
        "GET /docs%2Fswagger-ui.css": 404,
        "GET /docs/..%2Fdocs": 404,
        "GET /jobs/" + UNKNOWN + "%2Fattempts": 422,
        "POST /jobs%2Fbatch": 404,
        "POST /jobs/" + UNKNOWN + "%2Fcomplete": 405,
        "POST /queues/inner%2Fpause": 405,
        "PUT /queues/inner%2Fother": 422,
        "PUT /schedules/a%2Fb": 422,
        "PUT /job-types/a%2Fb": 422,
        "POST /workers/a%2Fdrain/drain": 422,
        "DELETE /api-keys/a%2Fb": 422,
    }
    assert {request: status(connect, request) for request in expected} == expected


def test_other_percent_escapes_are_part_of_a_name(connect: Connect, api: Api) -> None:
    expected = {
        "GET /%6Civez": 200,
        "GET /%2e%2e/livez": 404,
        "GET /queues/%2e%2e/livez": 404,
        "GET /queues/../livez": 404,
        "GET /queues/a%00b": 422,
        "GET /livez%00": 404,
        "GET /jobs/%00": 422,
        "GET /queues/%": 422,
        "GET /queues/%zz": 422,
        "GET /queues/%2": 422,
        "GET /queues/%ff": 422,
        "GET /queues/%c0%af": 422,
        "GET /queues/%0d%0aX-Header:%20a": 422,
        "GET /queues/%252F": 422,
        "GET /docs/%2e%2e": 404,
    }
    assert {request: status(connect, request) for request in expected} == expected


def status(connect: Connect, request: str) -> int:
    connection = connect()
    connection.send(f"{request} HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
    return connection.response().status
