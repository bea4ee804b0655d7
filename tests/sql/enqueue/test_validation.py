"""SQL enqueue rejects what HTTP rejects, with a message that names the parameter."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import MalformedJson, ValidationFailed
from app.http import strict_json
from app.jobs.validation import MAX_METADATA_BYTES
from app.settings import Settings
from tests.api_client import Api, parse_time
from tests.contract.hostile_cases import NAMES, VALUES, Case
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session
from tests.table import table

# The broker of other tests in this process uses `random` too, and hypothesis warns about it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

LIMITS = Settings.model_construct()
MAX_DELAY = LIMITS.max_delay_seconds
UNKNOWN_PARENT = {"depends_on": [uuid4()]}
TOO_FAR_AHEAD = datetime.now(UTC) + timedelta(seconds=MAX_DELAY, hours=1)
INVALID_NAMES = [name for name in NAMES.values() if "\x00" not in name]
JSON_TEXT = st.text(alphabet='[]{}":,\\u0dDcC8a1e-. \nNtrufalsn', max_size=60)
JSON_PARAMETERS = ("payload", "metadata", "retry")
TRACE_HEADERS = ("traceparent", "tracestate")  # HTTP has headers for them, not fields
HTTP_UNIQUE = {"unique_key": "key", "unique_for_seconds": "for_seconds", "on_duplicate": "on_duplicate"}
HTTP_FIELDS = {"group_key": "group", **dict.fromkeys(HTTP_UNIQUE, "unique")}
ESCAPES = st.lists(
    st.sampled_from(["\\\\", "\\u0000", "\\ud83d", "\\ude00", "\\n", "u0000", "ud83d", "\\u003a", "x"]), max_size=8
)

INVALID: list[tuple[str, dict[str, Any]]] = [
    ("job_type", {"job_type": None}),
    *[(name, {name: value}) for name in ("job_type", "queue", "group_key") for value in INVALID_NAMES],
    *[("priority", {"priority": value}) for value in (-32769, 32768, 2**31 - 1)],
    *[("run_at", {"run_at": value}) for value in (TOO_FAR_AHEAD, datetime.max.replace(tzinfo=UTC))],
    *[("delay_seconds", {"delay_seconds": value}) for value in (-1, MAX_DELAY + 1)],
    ("delay_seconds", {"delay_seconds": 1, "run_at": datetime.now(UTC)}),
    *[("unique_key", {"unique_key": value}) for value in ("", "x" * 201)],
    ("unique_for_seconds", {"unique_for_seconds": 1}),
    *[("unique_for_seconds", {"unique_key": "a", "unique_for_seconds": value}) for value in (0, -1, MAX_DELAY + 1)],
    ("on_duplicate", {"on_duplicate": "reject"}),
    *[("on_duplicate", {"unique_key": "a", "on_duplicate": value}) for value in ("", "REJECT", "ignore")],
    ("on_duplicate", {"unique_key": "a", "on_duplicate": "replace", "depends_on": []}),
    *[("max_attempts", {"max_attempts": value}) for value in (0, -1, 1001)],
    *[
        ("lease_seconds", {"lease_seconds": value})
        for value in (LIMITS.min_lease_seconds - 1, LIMITS.max_lease_seconds + 1)
    ],
    *[("timeout_seconds", {"timeout_seconds": value}) for value in (0, 30 * 24 * 60 * 60 + 1)],
    ("expires_at", {"expires_at": TOO_FAR_AHEAD}),
    *[("tags", {"tags": value}) for value in (["a"] * 33, [""], ["a", None], ["x" * 121], [["a"], ["b"]])],
    *[
        ("metadata", {"metadata": value})
        for value in ("[]", '"a"', "null", '{"a": 1, "a": 2}', f'{{"a": "{"x" * MAX_METADATA_BYTES}"}}')
    ],
    ("metadata", {"metadata": json.dumps({str(number): 0 for number in range(65)})}),
    *[
        ("retry", {"retry": value})
        for value in ("[]", "null", '{"base": 1}', '{"max_attempts": 3}', '{"factor": 2, "factor": 3}')
    ],
    *[
        ("retry", {"retry": f'{{"base_seconds": {value}}}'})
        for value in ("-0.1", '"1"', "null", "31622401", "1e308", "[1]")
    ],
    *[("retry", {"retry": f'{{"max_seconds": {value}}}'}) for value in ("-1", "31622401")],
    *[("retry", {"retry": f'{{"factor": {value}}}'}) for value in ("0.9", "1001")],
    *[("retry", {"retry": f'{{"jitter": {value}}}'}) for value in ("-0.1", "1.1")],
    ("depends_on", {"depends_on": [uuid4(), None]}),
    ("depends_on", {"depends_on": [[uuid4()], [uuid4()]]}),
    ("depends_on", {"depends_on": [uuid4() for _ in range(1001)]}),
    ("depends_on", UNKNOWN_PARENT),
    ("on_parent_failure", {"on_parent_failure": "run"}),
    *[("on_parent_failure", {"on_parent_failure": value, **UNKNOWN_PARENT}) for value in ("", "ignore")],
    *[(name, {name: "x" * 513}) for name in ("traceparent", "tracestate")],
]


def http_body(**fields: Any) -> str:
    """The same job as the body of an HTTP request. JSON parameters are copied as text."""
    unique = {HTTP_UNIQUE[name]: fields.pop(name) for name in HTTP_UNIQUE if name in fields}
    members = {"job_type": "test", **fields, **({"unique": unique} if unique else {})}
    texts = {
        HTTP_FIELDS.get(name, name): value if name in JSON_PARAMETERS else json.dumps(value, default=str)
        for name, value in members.items()
    }
    return "{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}"


def assert_rejected_over_http(api: Api, body: str, field: str) -> None:
    response = api.http.post("/jobs", content=body.encode())
    assert response.status_code == 422, response.text
    pointers = [error["pointer"] for error in response.json()["errors"]]
    assert {pointer.split("/")[1] for pointer in pointers} == {field}, pointers


def http_accepts(text: str) -> bool:
    """Whether HTTP accepts the payload."""
    try:
        strict_json.check(text.encode())
    except (MalformedJson, ValidationFailed):
        return False
    return True


def sql_accepts(shop: Session, text: str) -> bool:
    try:
        shop.enqueue(payload=text)
    except (asyncpg.InvalidParameterValueError, asyncpg.InvalidTextRepresentationError):
        return False
    return True


@table(("parameter", "fields"), INVALID)
def test_sql_and_http_reject_an_invalid_parameter_by_name(
    shop: Session, api: Api, db: TestDatabase, parameter: str, fields: dict[str, Any]
) -> None:
    error = shop.enqueue_error(**fields)
    assert (error.sqlstate, getattr(error, "column_name", None)) == ("22023", parameter)
    assert str(error).startswith(f"{parameter}: ")
    if parameter not in TRACE_HEADERS:
        assert_rejected_over_http(
            api, http_body(**{"queue": api.queue, **fields}), HTTP_FIELDS.get(parameter, parameter)
        )
    assert db.value("SELECT count(*) FROM jobs") + db.value("SELECT count(*) FROM deduplication_keys") == 0
    assert db.value("SELECT count(*) FROM queues WHERE name = $1", shop.queue) == 0


@table("name", ["run_at", "expires_at"])
@table(
    "instant",
    [
        "infinity",
        "-infinity",
        "0001-12-31 BC",
        "0001-01-01 00:00:00+00",
        "1969-12-31 23:59:59.999999+00",
        "1970-01-01 00:00:00+01:00",
    ],
)
def test_sql_and_http_reject_an_instant_out_of_range(shop: Session, api: Api, name: str, instant: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{name}: "):
        shop.execute(f"SELECT longshore_enqueue_v1('test', {name} => '{instant}')")
    assert_rejected_over_http(api, http_body(**{name: instant}), name)


def test_every_parameter_of_the_sql_function_has_an_invalid_case(shop: Session) -> None:
    names = shop.value("SELECT proargnames FROM pg_proc WHERE proname = 'longshore_enqueue_v1'")
    assert {parameter for parameter, _ in INVALID} | {"payload"} == set(names)


@table("name", ["run_at", "expires_at"])
def test_sql_enqueue_has_the_maximum_delay_of_the_settings(shop: Session, db: TestDatabase, name: str) -> None:
    shop.enqueue(**{name: parse_time(db.instant(MAX_DELAY - 60))})
    assert shop.enqueue_error(**{name: parse_time(db.instant(MAX_DELAY + 60))}).sqlstate == "22023"


@table(
    "fields",
    [
        {"queue": "x" * 120, "group_key": "x" * 120, "job_type": "x" * 120},
        {"delay_seconds": MAX_DELAY},
        {"lease_seconds": LIMITS.max_lease_seconds},
        {"unique_key": "ü" * 200, "unique_for_seconds": MAX_DELAY, "on_duplicate": "return_existing"},
        {"tags": ["ü" * 120] * 32},
        {"metadata": json.dumps({str(number): 0 for number in range(64)})},
        {"metadata": f'{{"a": "{"x" * (MAX_METADATA_BYTES - 9)}"}}'},
        {"payload": f'"{"x" * (LIMITS.max_payload_bytes - 2)}"'},
        {"traceparent": "x" * 512, "tracestate": "x" * 512},
        {"retry": '{"base_seconds": 31622400, "factor": 1000, "max_seconds": 31622400, "jitter": 1}'},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
    ],
)
def test_sql_enqueue_accepts_extreme_values(shop: Session, api: Api, fields: dict[str, Any]) -> None:
    assert api.job(shop.enqueue(**fields))["id"]


def test_sql_enqueue_uses_the_default_settings(shop: Session, api: Api, db: TestDatabase) -> None:
    assert api.job(shop.enqueue())["max_attempts"] == LIMITS.default_max_attempts
    sources = "".join(row["prosrc"] for row in db.rows("SELECT prosrc FROM pg_proc WHERE proname LIKE 'longshore%'"))
    assert re.findall(r">= (\d+) THEN\s+RAISE", sources) == [str(LIMITS.max_queues)]
    assert f"longshore_find_json_fault(payload, {LIMITS.max_payload_bytes})" in sources
    assert re.findall(r"'finished_seconds'\)::int, (\d+)", sources) == [str(LIMITS.finished_seconds)]
    assert re.findall(r"'mode', '(\w+)'", sources) == [LIMITS.finished_mode]


@table("case", [case for case in VALUES if case.status is None])
def test_sql_enqueue_stores_a_payload_that_http_accepts(shop: Session, db: TestDatabase, case: Case) -> None:
    job_id = shop.enqueue(payload=case.text.decode())
    assert db.value("SELECT payload FROM jobs WHERE id = $1", job_id).encode() == case.text


@table("case", [case for case in VALUES if case.status in (413, 422)])
def test_sql_enqueue_rejects_a_payload_that_http_rejects(shop: Session, db: TestDatabase, case: Case) -> None:
    """The function rejects by name; a payload that is not JSON for Postgres never reaches it."""
    error = shop.enqueue_error(payload=case.text.decode())
    names_parameter = error.sqlstate == "22023" and str(error).startswith("payload: ")
    assert names_parameter or error.sqlstate in ("22P02", "54001"), error
    assert db.value("SELECT count(*) FROM jobs") == 0


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON_TEXT | ESCAPES.map(lambda parts: '{"' + "".join(parts) + '": 1, "' + "".join(reversed(parts)) + '": 2}'))
def test_sql_and_http_accept_the_same_payloads(shop: Session, text: str) -> None:
    assert sql_accepts(shop, text) == http_accepts(text)
