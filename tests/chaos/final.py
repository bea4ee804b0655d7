"""The last look: every job as the database has it, the same through the API, and what the statistics say."""

from contextlib import suppress
from datetime import datetime

import httpx
import msgspec

from tests.api import Json
from tests.chaos.cluster import Cluster
from tests.chaos.workload import SCHEDULES

ALL_JOBS = """
SELECT id, state, coalesce(state_reason, '') AS reason, payload, deliveries, attempt, max_attempts, unique_key, schedule FROM jobs
UNION ALL
SELECT id, state, coalesce(state_reason, ''), payload, deliveries, attempt, max_attempts, unique_key, schedule FROM finished_jobs
UNION ALL
SELECT id, 'dead', reason, payload, deliveries, attempt, max_attempts, unique_key, schedule FROM dead_letters
"""
# One statement, one snapshot: which runs are still to come, and the jobs of those that have been.
TICKS = """
SELECT schedules.name, schedules.created_at, schedules.next_run_at,
    (SELECT count(*) FROM jobs WHERE schedule = schedules.name) + (SELECT count(*) FROM finished_jobs WHERE schedule = schedules.name)
    + (SELECT count(*) FROM dead_letters WHERE schedule = schedules.name) AS jobs
FROM schedules
"""

DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


class Kept(msgspec.Struct):
    """A job as it is in the end."""

    id: str
    state: str
    reason: str = ""
    key: str = ""
    deliveries: int = 0
    attempt: int = 0
    max_attempts: int = 0
    unique: str = ""
    schedule: str = ""


class Ticks(msgspec.Struct):
    """How many runs a schedule has had, by the clock, and how many jobs there are of it."""

    schedule: str
    runs: int
    jobs: int


class Final(msgspec.Struct):
    kept: list[Kept]
    ticks: list[Ticks] = []
    told: dict[str, str] = {}  # id -> state, through the API
    stats: dict[str, int] = {}
    drained: bool = True
    stubborn: int = 0
    deadlocks: int = 0  # that Postgres had to break up


def live(cluster: Cluster) -> int:
    return int(cluster.postgres.value("SELECT count(*) FROM jobs"))


def end_schedules(cluster: Cluster) -> list[Ticks]:
    """Counted, then paused: they would never let the run come to an end."""
    if not cluster.options.schedules:
        return []
    rows = cluster.postgres.rows(TICKS)
    with httpx.Client(base_url=cluster.direct(0), timeout=20) as http:
        for name in SCHEDULES:
            for _ in range(50):
                if _status(http, f"/schedules/{name}/pause") == 200:
                    break
    return [Ticks(row["name"], _runs(SCHEDULES[row["name"]], row["created_at"], row["next_run_at"]), row["jobs"]) for row in rows]


def _status(http: httpx.Client, path: str) -> int:
    with suppress(httpx.TransportError):
        return http.post(path).status_code
    return 0


def _runs(seconds: int, created: datetime, upcoming: datetime) -> int:
    """The first is one span after its making."""
    return round((upcoming - created).total_seconds() / seconds) - 1


def final_read(cluster: Cluster, ticks: list[Ticks], *, drained: bool) -> Final:
    rows = cluster.postgres.rows(ALL_JOBS)
    kept = [
        Kept(
            id=str(row["id"]),
            state=row["state"],
            reason=row["reason"],
            key=_key(row["payload"]),
            deliveries=row["deliveries"],
            attempt=row["attempt"],
            max_attempts=row["max_attempts"],
            unique=row["unique_key"] or "",
            schedule=row["schedule"] or "",
        )
        for row in rows
    ]
    with httpx.Client(base_url=cluster.direct(0), timeout=60) as http:
        return Final(kept, ticks, _through_api(http), _stats(http), drained=drained, deadlocks=int(cluster.postgres.value(DEADLOCKS)))


def _key(payload: str) -> str:
    return str(msgspec.json.decode(payload).get("key", ""))


def _through_api(http: httpx.Client) -> dict[str, str]:
    told: dict[str, str] = {}
    params: dict[str, str | int] = {"limit": 1000}
    while True:
        page = _get(http, "/jobs", params)
        told |= {job["id"]: job["state"] for job in page["items"]}
        if "next_cursor" not in page:
            return told
        params["cursor"] = page["next_cursor"]


def _stats(http: httpx.Client) -> dict[str, int]:
    return {state: int(count) for state, count in _get(http, "/stats", {})["counts"].items()}


def _get(http: httpx.Client, path: str, params: dict[str, str | int]) -> Json:
    """A broker may still play tricks on itself (buggify): reading may be repeated."""
    for _ in range(50):
        response = http.get(path, params=params)
        if response.status_code == 200:
            found: Json = response.json()
            return found
    raise AssertionError(response.text)
