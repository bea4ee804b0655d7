"""Oldest ready age, rates, percentiles, polls, workers and the verdict."""

from collections.abc import Callable
from typing import Any

from tests.api.stats.conftest import Aggregate
from tests.api_client import Api
from tests.database import TestDatabase
from tests.polls import Background


def rate(api: Api, span: str) -> dict[str, int]:
    return {name: rate[span] for name, rate in api.stats()["rates"].items()}


def test_statistics_contain_the_age_of_the_oldest_ready_job(api: Api, db: TestDatabase) -> None:
    oldest = api.enqueue()
    api.enqueue()
    db.age(oldest["id"], 100)
    assert 100 <= api.stats()["oldest_ready_age_seconds"] < 200


def test_oldest_ready_job_is_found_behind_higher_priorities(api: Api, db: TestDatabase) -> None:
    api.batch(*[{"priority": n} for n in range(5)])
    oldest = api.enqueue(priority=-1)
    db.age(oldest["id"], 100)
    assert api.stats()["oldest_ready_age_seconds"] >= 100


def test_statistics_without_ready_jobs_have_no_age(api: Api) -> None:
    api.enqueue(delay_seconds=60)
    api.enqueue()
    api.claim_one()
    assert "oldest_ready_age_seconds" not in api.stats()


def test_rates_are_equal_before_and_after_aggregation(api: Api, aggregate: Aggregate) -> None:
    api.enqueue_many(3)
    api.complete(api.claim_one())
    api.fail(api.claim_one())
    api.fail(api.claim_one(), retryable=False)
    expected = {"enqueued": 3, "completed": 1, "failed": 2, "dead": 1}
    assert rate(api, "last_1m") == expected
    aggregate()
    assert rate(api, "last_1m") == rate(api, "last_5m") == rate(api, "last_60m") == expected


def test_replay_and_purge_do_not_reduce_rates(api: Api, aggregate: Aggregate) -> None:
    for _ in range(2):
        api.dead_letter()
    job = api.get("/dead-letters")["items"][0]
    api.post(f"/dead-letters/{job['id']}/replay")
    api.post("/dead-letters/purge", {"all": True, "dry_run": False})
    assert rate(api, "last_1m")["dead"] == 2
    aggregate()
    assert rate(api, "last_1m")["dead"] == 2


def test_old_events_count_only_in_longer_periods(api: Api, db: TestDatabase, aggregate: Aggregate) -> None:
    api.enqueue()
    aggregate()
    db.execute("UPDATE stat_rates SET bucket_start = bucket_start - interval '2 minutes'")
    assert [rate(api, f"last_{span}m")["enqueued"] for span in (1, 5, 60)] == [0, 1, 1]
    db.execute("UPDATE stat_rates SET bucket_start = bucket_start - interval '10 minutes'")
    assert [rate(api, f"last_{span}m")["enqueued"] for span in (1, 5, 60)] == [0, 0, 1]
    db.execute("UPDATE stat_rates SET bucket_start = bucket_start - interval '1 hour'")
    assert [rate(api, f"last_{span}m")["enqueued"] for span in (1, 5, 60)] == [0, 0, 0]


def test_old_unaggregated_deltas_count_at_their_own_time(api: Api, db: TestDatabase, aggregate: Aggregate) -> None:
    api.enqueue()
    db.execute("UPDATE stat_deltas SET at = at - interval '2 minutes'")
    assert [rate(api, f"last_{span}m")["enqueued"] for span in (1, 5, 60)] == [0, 1, 1]


def test_wait_and_run_times_are_accurate_to_25_percent(
    api: Api, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue()
    db.age(job["id"], 50)
    claimed = api.claim_one(lease_seconds=3600)
    db.age(job["id"], 100)
    api.complete(claimed)
    stats = eventually(lambda: {"wait_time", "run_time"} <= api.stats().keys() and api.stats())
    run_ms = api.job(job["id"])["duration_ms"]
    for percentile in ("p50_ms", "p95_ms", "p99_ms"):
        assert run_ms <= stats["run_time"][percentile] <= run_ms * 1.26
        assert 50_000 <= stats["wait_time"][percentile] < 100_000


def test_percentiles_distinguish_common_from_rare_durations(
    api: Api, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    ids = api.enqueue_many(100)
    claimed = api.claim(max_jobs=100, lease_seconds=80_000)["jobs"]
    for job_id in ids[:3]:
        db.age(job_id, 10_000)
    db.execute("UPDATE jobs SET started_at = started_at - interval '100 seconds'")
    api.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in claimed])
    run = eventually(lambda: api.stats().get("run_time"))
    assert run["p50_ms"] == run["p95_ms"] < 1_000_000 < run["p99_ms"]


def test_statistics_without_runs_have_no_durations(api: Api) -> None:
    api.enqueue()
    assert not {"wait_time", "run_time"} & api.stats().keys()


def test_waiting_polls_are_counted_per_queue(api: Api, background: Background, eventually: Callable[..., Any]) -> None:
    api.enqueue(queue=f"{api.queue}-b")
    job = api.enqueue()
    api.claim_one()
    poll = background.submit(api.claim_one, wait_seconds=20)
    eventually(lambda: api.stats()["waiting_polls"] == 1)
    assert api.get(f"/queues/{api.queue}-b/stats")["waiting_polls"] == 0
    api.enqueue()
    assert poll.result()["id"] != job["id"]
    assert api.stats()["waiting_polls"] == 0


def test_recently_seen_workers_are_counted(api: Api, db: TestDatabase) -> None:
    api.claim(worker_id="w1")
    api.claim(worker_id="w2")
    api.get("/workers")
    assert api.get("/stats")["workers"] == 2
    api.configure()
    assert api.stats()["workers"] == 2  # workers do not belong to a queue
    db.execute("UPDATE workers SET last_seen_at = last_seen_at - interval '5 minutes' WHERE id = 'w1'")
    assert api.get("/stats")["workers"] == 1


def test_old_ready_job_without_a_waiting_poll_is_a_warning(api: Api, db: TestDatabase) -> None:
    job = api.enqueue()
    assert (api.stats()["verdict"], api.stats()["reasons"]) == ("ok", [])
    db.age(job["id"], 1000)
    stats = api.stats()
    assert (stats["verdict"], len(stats["reasons"])) == ("warning", 1)
    api.claim_one()
    assert api.stats()["verdict"] == "ok"
