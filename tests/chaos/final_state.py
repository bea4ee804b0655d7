"""The final state of a run: every job in the database and in the API, statistics, the audit log."""

from contextlib import suppress
from datetime import datetime

import httpx
import msgspec

from tests.api_client import Json
from tests.chaos import audit_log
from tests.chaos.audit_log import AuditRow
from tests.chaos.cluster import Cluster
from tests.chaos.history import payload_hash
from tests.chaos.workload import SCHEDULES

COLUMNS = "id, payload, deliveries, attempt, max_attempts, unique_key, schedule, crashes, replayed_from"
ALL_JOBS = f"""
SELECT state, coalesce(state_reason, '') AS reason, NULL::text AS result, NULL::timestamptz AS ended, {COLUMNS}
FROM jobs
UNION ALL
SELECT state, coalesce(state_reason, ''), result, finished_at, {COLUMNS} FROM finished_jobs
UNION ALL
SELECT 'dead', reason, NULL, dead_at, {COLUMNS} FROM dead_letters
"""
# One statement has one snapshot: the next run of each schedule, and the jobs of its past runs.
SCHEDULE_RUNS = """
SELECT schedules.name, schedules.created_at, schedules.next_run_at,
    (SELECT count(*) FROM jobs WHERE schedule = schedules.name)
    + (SELECT count(*) FROM finished_jobs WHERE schedule = schedules.name)
    + (SELECT count(*) FROM dead_letters WHERE schedule = schedules.name) AS jobs
FROM schedules
"""


class StoredJob(msgspec.Struct):
    """A job at the end of the run."""

    id: str
    state: str
    reason: str = ""
    key: str = ""
    deliveries: int = 0
    attempt: int = 0
    max_attempts: int = 0
    unique: str = ""
    schedule: str = ""
    replayed_from: str = ""  # the dead letter of another queue that it was replayed from
    crashes: int = 0
    result: str = ""  # its hash
    ended: float = 0  # by the database's clock


class ScheduleRuns(msgspec.Struct):
    """The number of runs of a schedule, by the clock, and the number of its jobs."""

    schedule: str
    runs: int
    jobs: int


class RateLimit(msgspec.Struct):
    limit: int
    per_seconds: int


class QueueLimits(msgspec.Struct):
    """The limits in a queue's configuration."""

    name: str
    max_running: int = 0
    max_running_per_group: int = 0
    rate: RateLimit | None = None
    fair: bool = False

    @property
    def orders_by_group(self) -> bool:
        return self.fair or bool(self.max_running_per_group)


class FinalState(msgspec.Struct):
    stored: list[StoredJob]
    schedule_runs: list[ScheduleRuns] = []
    api_states: dict[str, str] = {}  # id -> state, through the API
    results: dict[str, str] = {}  # id -> the hash of its result, through the API
    stats: dict[str, int] = {}
    drained: bool = True
    hung_brokers: int = 0  # brokers that did not exit on SIGTERM
    failed_brokers: list[int] = []  # exit statuses of brokers that exited by themselves, or not with 0
    deadlocks: int = 0  # detected by Postgres
    uncovered: int = 0  # jobs that were or are without a ready span or a lease check
    audit_log: list[AuditRow] = []
    queues: dict[int, QueueLimits] = {}


def count_unfinished_jobs(cluster: Cluster) -> int:
    return int(cluster.postgres.value("SELECT count(*) FROM jobs"))


def pause_schedules(cluster: Cluster) -> list[ScheduleRuns]:
    """Counts the runs of the schedules, then pauses them: otherwise the run would never drain."""
    if not cluster.options.schedules:
        return []
    rows = cluster.postgres.rows(SCHEDULE_RUNS)
    with cluster.http() as http:
        for name in SCHEDULES:
            for _ in range(50):
                if _status(http, f"/schedules/{name}/pause") == 200:
                    break
    return [
        ScheduleRuns(row["name"], _runs(SCHEDULES[row["name"]], row["created_at"], row["next_run_at"]), row["jobs"])
        for row in rows
    ]


def _status(http: httpx.Client, path: str) -> int:
    with suppress(httpx.TransportError):
        return http.post(path).status_code
    return 0


def _runs(seconds: int, created: datetime, next_run: datetime) -> int:
    """Returns the number of runs; the first one is one interval after the creation."""
    return round((next_run - created).total_seconds() / seconds) - 1


def read_final_state(cluster: Cluster, schedule_runs: list[ScheduleRuns], *, drained: bool) -> FinalState:
    rows = cluster.postgres.rows(ALL_JOBS)
    stored = [
        StoredJob(
            id=str(row["id"]),
            state=row["state"],
            reason=row["reason"],
            key=_key(row["payload"]),
            deliveries=row["deliveries"],
            attempt=row["attempt"],
            max_attempts=row["max_attempts"],
            unique=row["unique_key"] or "",
            schedule=row["schedule"] or "",
            replayed_from=str(row["replayed_from"] or ""),
            crashes=row["crashes"],
            result=payload_hash(msgspec.json.decode(row["result"])) if row["result"] else "",
            ended=row["ended"].timestamp() if row["ended"] else 0,
        )
        for row in rows
    ]
    with cluster.http(timeout=60) as http:
        jobs, stats = _jobs_of_api(http), _stats(http)
    recorded, queues = audit_log.read(cluster.postgres), _queue_limits(cluster)
    assert recorded, "the triggers in the database recorded nothing"
    uncovered = cluster.uncovered_jobs()
    cluster.terminate_all_brokers()
    return FinalState(
        stored,
        schedule_runs,
        api_states={job["id"]: job["state"] for job in jobs},
        results={job["id"]: payload_hash(job["result"]) for job in jobs if "result" in job},
        stats=stats,
        drained=drained,
        hung_brokers=cluster.hung_brokers,
        failed_brokers=cluster.failed_brokers,
        deadlocks=cluster.postgres.deadlocks(),
        uncovered=uncovered,
        audit_log=recorded,
        queues=queues,
    )


def _queue_limits(cluster: Cluster) -> dict[int, QueueLimits]:
    rows = cluster.postgres.rows("SELECT id, name, config FROM queues")
    return {
        row["id"]: msgspec.convert(msgspec.json.decode(row["config"]) | {"name": row["name"]}, QueueLimits)
        for row in rows
    }


def _key(payload: str) -> str:
    return str(msgspec.json.decode(payload).get("key", ""))


def _jobs_of_api(http: httpx.Client) -> list[Json]:
    jobs: list[Json] = []
    params: dict[str, str | int] = {"limit": 1000}
    while True:
        page = _get(http, "/jobs", params)
        jobs += page["items"]
        if "next_cursor" not in page:
            return jobs
        params["cursor"] = page["next_cursor"]


def _stats(http: httpx.Client) -> dict[str, int]:
    return {state: int(count) for state, count in _get(http, "/stats", {})["counts"].items()}


def _get(http: httpx.Client, path: str, params: dict[str, str | int]) -> Json:
    """Retries a read, because brokers still inject faults into themselves (buggify)."""
    for _ in range(50):
        response = http.get(path, params=params)
        if response.status_code == 200:
            body: Json = response.json()
            return body
    raise AssertionError(response.text)
