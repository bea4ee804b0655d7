"""Secure defaults: no other origins, no unused methods, no details of the implementation.

See docs/reliability/faults.md#e8.
"""

import httpx
import pytest

from tests.api_client import Api


@pytest.mark.parametrize("path", ["/jobs", "/stats", "/metrics", "/docs"])
def test_no_response_allows_another_origin(http: httpx.Client, path: str) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("GET", "OPTIONS"):
        response = http.request(method, path, headers=headers)
        assert not [name for name in response.headers if name.startswith("access-control-")]


def test_broker_without_keys_rejects_requests_of_another_origin(api: Api) -> None:
    """A browser sends such a POST without a preflight request: it needs no special header."""
    job = '{"job_type": "x"}'
    rejected = api.http.post("/jobs", content=job, headers={"Origin": "https://evil.example"})
    assert (rejected.status_code, rejected.json()["code"]) == (403, "foreign_origin")
    assert "origin" in rejected.json()["title"]
    assert "API key does not" not in rejected.text, "no key is involved"
    assert (
        api.http.post("/jobs", content=job, headers={"Origin": str(api.http.base_url).rstrip("/")}).status_code == 201
    )


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8080", "[fe80::1]:8080"])
def test_broker_without_keys_accepts_browsers_only_by_a_loopback_host_name(api: Api, name: str) -> None:
    """DNS rebinding: a name that resolves to 127.0.0.1 gives any page the origin of the broker."""
    browser = {"Host": name, "User-Agent": "Mozilla/5.0"}
    assert api.http.get("/jobs", headers=browser).status_code == 403
    assert api.http.post("/jobs", content="{}", headers={"Host": name, "Origin": f"http://{name}"}).status_code == 403
    assert api.http.get("/jobs", headers={"User-Agent": "Mozilla/5.0"}).status_code == 200
    assert api.http.get("/jobs", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PROPFIND"])
def test_unused_methods_are_rejected(http: httpx.Client, method: str) -> None:
    assert http.request(method, "/jobs").status_code == 405


def test_no_response_names_the_server_software(api: Api) -> None:
    for response in (api.http.get("/livez"), api.http.get("/no/such/path"), api.http.post("/jobs", content=b"{")):
        assert "server" not in response.headers
        assert not {"uvicorn", "python", "asyncpg", "traceback"} & set(response.text.lower().split())


def test_payload_with_a_script_is_returned_as_json_with_nosniff(api: Api) -> None:
    """A payload that is hostile to a page stays data: no browser takes it for HTML."""
    job = api.enqueue(payload="<script>alert(1)</script>")
    response = api.http.get(f"/jobs/{job['id']}")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.json()["payload"] == "<script>alert(1)</script>"
