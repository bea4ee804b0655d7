"""What HTTP would refuse is refused, with a message that names the parameter."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.enqueue.defaults import MAX_METADATA_BYTES
from app.errors import MalformedJson, ValidationFailed
from app.http import strict_json
from app.settings import Settings
from tests.api import Api, when
from tests.contract.hostile import NAMES, VALUES, Case
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Session

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

LIMITS = Settings.model_construct()
AHEAD = LIMITS.max_delay_seconds
A_JOB = {"depends_on": [uuid4()]}
FAR = datetime.now(UTC) + timedelta(seconds=AHEAD, hours=1)
BAD_NAMES = [name for name in NAMES.values() if "\x00" not in name]
JSON_TEXT = st.text(alphabet='[]{}":,\\u0dDcC8a1e-. \nNtrufalsn', max_size=60)
ESCAPES = st.lists(
    st.sampled_from(["\\\\", "\\u0000", "\\ud83d", "\\ude00", "\\n", "u0000", "ud83d", "\\u003a", "x"]), max_size=8
)

BAD: list[tuple[str, dict[str, Any]]] = [
    ("job_type", {"job_type": None}),
    *[(name, {name: bad}) for name in ("job_type", "queue", "group_key") for bad in BAD_NAMES],
    *[("priority", {"priority": bad}) for bad in (-32769, 32768, 2**31 - 1)],
    *[("run_at", {"run_at": bad}) for bad in (FAR, datetime.max.replace(tzinfo=UTC))],
    *[("delay_seconds", {"delay_seconds": bad}) for bad in (-1, AHEAD + 1)],
    ("delay_seconds", {"delay_seconds": 1, "run_at": datetime.now(UTC)}),
    *[("unique_key", {"unique_key": bad}) for bad in ("", "x" * 201)],
    ("unique_for_seconds", {"unique_for_seconds": 1}),
    *[("unique_for_seconds", {"unique_key": "a", "unique_for_seconds": bad}) for bad in (0, -1, AHEAD + 1)],
    ("on_duplicate", {"on_duplicate": "reject"}),
    *[("on_duplicate", {"unique_key": "a", "on_duplicate": bad}) for bad in ("", "REJECT", "ignore")],
    ("on_duplicate", {"unique_key": "a", "on_duplicate": "replace", "depends_on": []}),
    *[("max_attempts", {"max_attempts": bad}) for bad in (0, -1, 1001)],
    *[
        ("lease_seconds", {"lease_seconds": bad})
        for bad in (LIMITS.min_lease_seconds - 1, LIMITS.max_lease_seconds + 1)
    ],
    *[("timeout_seconds", {"timeout_seconds": bad}) for bad in (0, 30 * 24 * 60 * 60 + 1)],
    ("expires_at", {"expires_at": FAR}),
    *[("tags", {"tags": bad}) for bad in (["a"] * 33, [""], ["a", None], ["x" * 121], [["a"], ["b"]])],
    *[
        ("metadata", {"metadata": bad})
        for bad in ("[]", '"a"', "null", '{"a": 1, "a": 2}', f'{{"a": "{"x" * MAX_METADATA_BYTES}"}}')
    ],
    ("metadata", {"metadata": json.dumps({str(number): 0 for number in range(65)})}),
    *[
        ("retry", {"retry": bad})
        for bad in ("[]", "null", '{"base": 1}', '{"max_attempts": 3}', '{"factor": 2, "factor": 3}')
    ],
    *[
        ("retry", {"retry": f'{{"base_seconds": {bad}}}'})
        for bad in ("-0.1", '"1"', "null", "31622401", "1e308", "[1]")
    ],
    *[("retry", {"retry": f'{{"max_seconds": {bad}}}'}) for bad in ("-1", "31622401")],
    *[("retry", {"retry": f'{{"factor": {bad}}}'}) for bad in ("0.9", "1001")],
    *[("retry", {"retry": f'{{"jitter": {bad}}}'}) for bad in ("-0.1", "1.1")],
    ("depends_on", {"depends_on": [uuid4(), None]}),
    ("depends_on", {"depends_on": [[uuid4()], [uuid4()]]}),
    ("depends_on", {"depends_on": [uuid4() for _ in range(1001)]}),
    ("depends_on", A_JOB),
    ("on_parent_failure", {"on_parent_failure": "run"}),
    *[("on_parent_failure", {"on_parent_failure": bad, **A_JOB}) for bad in ("", "ignore")],
    *[(name, {name: "x" * 513}) for name in ("traceparent", "tracestate")],
]


def judged(text: str) -> bool:
    """Whether HTTP would take it."""
    try:
        strict_json.check(text)
    except (MalformedJson, ValidationFailed):
        return False
    return True


def taken(shop: Session, text: str) -> bool:
    try:
        shop.enqueue(payload=text)
    except (asyncpg.InvalidParameterValueError, asyncpg.InvalidTextRepresentationError):
        return False
    return True


@pytest.mark.parametrize(
    ("parameter", "fields"), BAD, ids=[f"{number} {parameter}" for number, (parameter, _) in enumerate(BAD)]
)
def test_what_is_not_allowed_is_refused_by_name(
    shop: Session, db: TestDatabase, parameter: str, fields: dict[str, Any]
) -> None:
    refused = shop.refused(**fields)
    assert (refused.sqlstate, getattr(refused, "column_name", None)) == ("22023", parameter)
    assert str(refused).startswith(f"{parameter}: ")
    assert db.value("SELECT count(*) FROM jobs") + db.value("SELECT count(*) FROM keys") == 0
    assert db.value("SELECT count(*) FROM queues WHERE name = $1", shop.queue) == 0


@pytest.mark.parametrize(
    "instant", ["infinity", "-infinity", "0001-12-31 BC", "0001-01-01 00:00:00+00", "1969-12-31 23:59:59.999999+00"]
)
@pytest.mark.parametrize("name", ["run_at", "expires_at"])
def test_an_instant_that_is_none_is_refused(shop: Session, name: str, instant: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{name}: "):
        shop.execute(f"SELECT longshore_enqueue_v1('test', {name} => '{instant}')")


def test_every_parameter_has_something_that_is_refused(shop: Session) -> None:
    names = shop.value("SELECT proargnames FROM pg_proc WHERE proname = 'longshore_enqueue_v1'")
    assert {parameter for parameter, _ in BAD} | {"payload"} == set(names)


@pytest.mark.parametrize("name", ["run_at", "expires_at"])
def test_the_horizon_is_that_of_the_settings(shop: Session, db: TestDatabase, name: str) -> None:
    shop.enqueue(**{name: when(db.instant(AHEAD - 60))})
    assert shop.refused(**{name: when(db.instant(AHEAD + 60))}).sqlstate == "22023"


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "x" * 120, "group_key": "x" * 120, "job_type": "x" * 120},
        {"delay_seconds": AHEAD},
        {"lease_seconds": LIMITS.max_lease_seconds},
        {"unique_key": "ü" * 200, "unique_for_seconds": AHEAD, "on_duplicate": "return_existing"},
        {"tags": ["ü" * 120] * 32},
        {"metadata": json.dumps({str(number): 0 for number in range(64)})},
        {"metadata": f'{{"a": "{"x" * (MAX_METADATA_BYTES - 9)}"}}'},
        {"payload": f'"{"x" * (LIMITS.max_payload_bytes - 2)}"'},
        {"traceparent": "x" * 512, "tracestate": "x" * 512},
        {"retry": '{"base_seconds": 31622400, "factor": 1000, "max_seconds": 31622400, "jitter": 1}'},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
    ],
    ids=[*map(str, range(11))],
)
def test_what_is_just_allowed_is_taken(shop: Session, api: Api, fields: dict[str, Any]) -> None:
    assert api.job(shop.enqueue(**fields))["id"]


def test_what_is_a_setting_for_http_is_its_default_here(shop: Session, api: Api, db: TestDatabase) -> None:
    assert api.job(shop.enqueue())["max_attempts"] == LIMITS.default_max_attempts
    sources = "".join(row["prosrc"] for row in db.rows("SELECT prosrc FROM pg_proc WHERE proname LIKE 'longshore%'"))
    assert re.findall(r">= (\d+) THEN\s+RAISE", sources) == [str(LIMITS.max_queues)]
    assert f"longshore_json_fault(payload, {LIMITS.max_payload_bytes})" in sources
    assert re.findall(r"'finished_seconds'\)::int, (\d+)", sources) == [str(LIMITS.finished_seconds)]
    assert re.findall(r"'mode', '(\w+)'", sources) == [LIMITS.finished_mode]


@pytest.mark.parametrize("case", [case for case in VALUES if case.status is None], ids=lambda case: case.row)
def test_a_payload_that_http_takes_is_taken_and_kept(shop: Session, db: TestDatabase, case: Case) -> None:
    job_id = shop.enqueue(payload=case.text.decode())
    assert db.value("SELECT payload FROM jobs WHERE id = $1", job_id).encode() == case.text


@pytest.mark.parametrize("case", [case for case in VALUES if case.status in (413, 422)], ids=lambda case: case.row)
def test_a_payload_that_http_refuses_is_refused(shop: Session, db: TestDatabase, case: Case) -> None:
    """What is not even JSON for Postgres never reaches the function; the rest is refused by name."""
    refused = shop.refused(payload=case.text.decode())
    names_it = refused.sqlstate == "22023" and str(refused).startswith("payload: ")
    assert names_it or refused.sqlstate in ("22P02", "54001"), refused
    assert db.value("SELECT count(*) FROM jobs") == 0


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON_TEXT | ESCAPES.map(lambda parts: '{"' + "".join(parts) + '": 1, "' + "".join(reversed(parts)) + '": 2}'))
def test_sql_and_http_judge_alike(shop: Session, text: str) -> None:
    assert taken(shop, text) == judged(text)
