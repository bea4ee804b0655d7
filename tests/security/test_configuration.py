"""What is off unless somebody asks for it: other origins, methods that nobody needs, words about our insides (E8)."""

import httpx
import pytest

from tests.api import Api


@pytest.mark.parametrize("path", ["/jobs", "/stats", "/metrics", "/docs"])
def test_no_other_origin_is_let_in(http: httpx.Client, path: str) -> None:
    params = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("GET", "OPTIONS"):
        answer = http.request(method, path, headers=params)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_without_keys_a_page_of_another_origin_gets_nothing_done(api: Api) -> None:
    """A browser sends such a POST without asking first, as it needs no header of its own."""
    stored = '{"job_type": "x"}'
    refused = api.http.post("/jobs", content=stored, headers={"Origin": "https://evil.example"})
    assert (refused.status_code, refused.json()["code"]) == (403, "foreign_origin")
    assert "origin" in refused.json()["title"]
    assert "API key does not" not in refused.text, "there is no key that could"
    assert (
        api.http.post("/jobs", content=stored, headers={"Origin": str(api.http.base_url).rstrip("/")}).status_code
        == 201
    )


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8080", "[fe80::1]:8080"])
def test_without_keys_a_browser_gets_in_by_the_name_of_this_machine_only(api: Api, name: str) -> None:
    """A name that leads to 127.0.0.1 makes any page one of our own origin."""
    browser = {"Host": name, "User-Agent": "Mozilla/5.0"}
    assert api.http.get("/jobs", headers=browser).status_code == 403
    assert api.http.post("/jobs", content="{}", headers={"Host": name, "Origin": f"http://{name}"}).status_code == 403
    assert api.http.get("/jobs", headers={"User-Agent": "Mozilla/5.0"}).status_code == 200
    assert api.http.get("/jobs", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PROPFIND"])
def test_methods_that_nobody_needs_are_refused(http: httpx.Client, method: str) -> None:
    assert http.request(method, "/jobs").status_code == 405


def test_no_answer_tells_what_serves_it(api: Api) -> None:
    for answer in (api.http.get("/livez"), api.http.get("/no/such/path"), api.http.post("/jobs", content=b"{")):
        assert "server" not in answer.headers
        assert not {"uvicorn", "python", "asyncpg", "traceback"} & set(answer.text.lower().split())


def test_a_payload_is_never_more_than_json(api: Api) -> None:
    """What is hostile to a page that shows it stays data: no browser takes it for a page."""
    job = api.enqueue(payload="<script>alert(1)</script>")
    answer = api.http.get(f"/jobs/{job['id']}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["payload"] == "<script>alert(1)</script>"
