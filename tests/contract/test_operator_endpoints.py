"""Endpoints for operators and orchestrators: /livez, /readyz, /metrics, /limits, /docs."""

import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.settings import Settings
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.example_setup import example
from tests.contract.test_examples import NOT_READY, shape

CLAIM_PROTECTION_METRICS = [
    "longshore_claims_parked_left",
    "longshore_claims_undone",
    "longshore_claims_replayed",
    "longshore_claims_reconciled",
]


def metrics(api: Api) -> dict[str, float]:
    """The value of each sample without labels."""
    parsed = text_string_to_metric_families(api.http.get("/metrics").text)
    return {sample.name: sample.value for metric in parsed for sample in metric.samples if not sample.labels}


def test_broker_with_a_migrated_database_is_ready(api: Api) -> None:
    readiness = api.get("/readyz")
    assert readiness["ready"]
    assert [check["name"] for check in readiness["checks"]] == ["database", "durability", "schema", "serving"]


def test_broker_without_a_schema_is_alive_but_not_ready(postgres: str) -> None:
    with threaded_broker(TEST_SETTINGS, postgres) as broker:
        assert broker.http.get("/livez").json() == {"status": "alive"}
        response = broker.http.get("/readyz")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert shape(response.json()) == shape(example(NOT_READY)["answer"]["body"])
    assert [check["name"] for check in response.json()["checks"] if not check["ok"]] == ["schema"]


def test_broker_without_a_database_is_alive_but_not_ready() -> None:
    with threaded_broker(TEST_SETTINGS, "postgresql://user@127.0.0.1:1/nowhere") as broker:
        assert broker.http.get("/livez").status_code == 200
        response = broker.http.get("/readyz")
        enqueued = broker.http.post("/jobs", json={"job_type": "test"})
    assert [check["name"] for check in response.json()["checks"] if not check["ok"]] == [
        "database",
        "durability",
        "schema",
    ]
    assert (enqueued.status_code, enqueued.json()["code"]) == (503, "database_unavailable")
    assert (enqueued.json()["outcome"], enqueued.headers["retry-after"]) == ("not_done", "1")


def test_draining_broker_is_not_ready(dsn: str) -> None:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        assert broker.broker_services is not None
        broker.broker_services.drain()
        response = broker.http.get("/readyz")
    assert response.status_code == 503
    assert [check["name"] for check in response.json()["checks"] if not check["ok"]] == ["serving"]


def test_limits_are_those_of_the_settings(api: Api) -> None:
    limits = api.get("/limits")
    assert limits.pop("max_list_items") == 1000
    assert limits == {name: getattr(TEST_SETTINGS, name) for name in limits}


def test_every_limit_in_the_settings_is_published(api: Api) -> None:
    # Not about the content of a request.
    unpublished = {"max_parked_polls", "max_crashes", "max_deliveries", "max_connections"}
    unpublished |= {"max_held_bytes", "max_unread_bytes"}
    # Far above what any client sends.
    unpublished |= {"max_header_bytes", "max_headers", "max_url_bytes"}
    limits = {name for name in Settings.model_fields if name.startswith(("max_", "min_"))}
    assert api.get("/limits").keys() - {"max_list_items"} == limits - unpublished


def test_metrics_count_each_protection_against_lost_claims(api: Api) -> None:
    assert {f"{name}_total" for name in CLAIM_PROTECTION_METRICS} <= metrics(api).keys()


def test_metrics_count_enqueued_and_claimed_jobs(api: Api) -> None:
    before = metrics(api)
    api.enqueue()
    api.claim_one()
    after = metrics(api)
    counted = ["longshore_jobs_enqueued_total", "longshore_jobs_claimed_total"]
    assert [after[name] - before[name] for name in counted] == [1, 1]


def test_metrics_time_requests_by_operation(api: Api) -> None:
    api.get("/limits")
    api.http.get("/no/such/path")
    text = api.http.get("/metrics").text
    assert 'longshore_request_seconds_count{operation="get_limits",status="2xx"}' in text
    assert "such" not in text, "a path must not be a label: any caller could create any number of them"


def test_docs_need_no_internet(http: httpx.Client) -> None:
    page = http.get("/docs").text
    assert re.findall(r"(?:https?:)?//[a-z][^\s\"'<]*", page) == []
    assets = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert len(assets) == 3
    sizes = {asset: len(http.get(asset).raise_for_status().content) for asset in assets}
    assert all(size > 10_000 for asset, size in sizes.items() if "swagger" in asset), sizes


def test_docs_run_scripts_of_this_server_only(http: httpx.Client) -> None:
    """The page has no inline script, because this policy would block it."""
    page = http.get("/docs")
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    assert (policy["base-uri"], policy["form-action"], policy["frame-ancestors"]) == ("'none'", "'none'", "'none'")
    assert not any(source in page.headers["content-security-policy"] for source in ("unsafe", "*", "http"))
    assert re.findall(r"<script(?! src=)|<style| style=| on\w+=", page.text) == []


@pytest.mark.parametrize(
    ("asset", "content_type"),
    [("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css"), ("start.js", "text/javascript")],
)
def test_docs_asset_has_its_content_type(asset: str, content_type: str, http: httpx.Client) -> None:
    assert http.get(f"/docs/{asset}").headers["content-type"].startswith(content_type)


def test_docs_asset_is_sent_completely_whatever_range_is_requested(http: httpx.Client) -> None:
    content = http.get("/docs/swagger-ui.css").content
    ranges = ["bytes=abc", "bytes=5-2", "bytes=99999999-", "bytes=0-0", "bytes=0-1,4-5"]
    responses = [http.get("/docs/swagger-ui.css", headers={"Range": requested}) for requested in ranges]
    assert [(response.status_code, response.content == content) for response in responses] == [(200, True)] * len(
        ranges
    )


@pytest.mark.parametrize("asset", ["..%2f..%2fsettings.py", "index.html", "%2e%2e"])
def test_no_other_file_is_served_as_a_docs_asset(asset: str, http: httpx.Client) -> None:
    assert http.get(f"/docs/{asset}").status_code == 404
