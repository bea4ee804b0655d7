"""The health of a queue, by its configured limits."""

from collections.abc import Callable
from typing import Any

import pytest

from app.queues.schemas import HealthLimits
from app.stats.health import STALE_SECONDS, assess
from tests.api_client import Api
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.table import table

HEALTHY: dict[str, Any] = {"depth": 0, "age": None, "dead": 0, "waiting_polls": 1}


@table(
    ("limits", "facts", "level"),
    [
        ({}, {"depth": 10**6, "dead": 10**6, "age": 10**6}, "ok"),
        ({"max_depth": 10}, {"depth": 7}, "ok"),
        ({"max_depth": 10}, {"depth": 8}, "warning"),
        ({"max_depth": 10}, {"depth": 10}, "warning"),
        ({"max_depth": 10}, {"depth": 11}, "critical"),
        ({"max_depth": 0}, {"depth": 0}, "ok"),
        ({"max_depth": 0}, {"depth": 1}, "critical"),
        ({"max_age_seconds": 60}, {"age": 61}, "critical"),
        ({"max_age_seconds": 60}, {"age": 50}, "warning"),
        ({"max_dead_per_hour": 5}, {"dead": 6}, "critical"),
        ({"max_dead_per_hour": 5}, {"dead": 3}, "ok"),
        ({}, {"age": STALE_SECONDS + 1, "waiting_polls": 0}, "warning"),
    ],
)
def test_verdict_follows_the_limits(limits: dict[str, int], facts: dict[str, int], level: str) -> None:
    verdict, reasons = assess(HealthLimits(**limits), **{**HEALTHY, **facts})
    assert verdict == level
    assert bool(reasons) == (level != "ok")


def test_verdict_is_the_most_severe_and_lists_all_reasons() -> None:
    limits = HealthLimits(max_depth=10, max_dead_per_hour=1)
    assert assess(limits, **{**HEALTHY, "depth": 9, "dead": 2}) == (
        "critical",
        [
            "9 jobs are ready, close to the limit of 10",
            "2 jobs became dead letters within the last hour; the limit is 1",
        ],
    )


@table(
    ("limits", "facts", "reason"),
    [
        ({"max_depth": 1}, {"depth": 1}, "1 job is ready, at the limit of 1"),
        ({"max_depth": 0}, {"depth": 1}, "1 job is ready; the limit is 0"),
        ({"max_depth": 10}, {"depth": 10}, "10 jobs are ready, at the limit of 10"),
        ({"max_dead_per_hour": 0}, {"dead": 1}, "1 job became a dead letter within the last hour; the limit is 0"),
    ],
)
def test_reason_names_one_job_and_a_reached_limit(limits: dict[str, int], facts: dict[str, int], reason: str) -> None:
    assert assess(HealthLimits(**limits), **{**HEALTHY, **facts})[1] == [reason]


def test_queue_statistics_contain_the_verdict(api: Api) -> None:
    api.configure(health={"max_depth": 1})
    api.enqueue_many(2)
    assert (api.stats()["verdict"], api.stats()["reasons"]) == ("critical", ["2 jobs are ready; the limit is 1"])
    api.cancel({"id": api.get("/jobs", queue=api.queue)["items"][0]["id"]})
    assert api.stats()["verdict"] == "warning"


def test_job_that_waits_for_admission_counts_toward_the_oldest_age(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1, health={"max_age_seconds": 100})
    api.enqueue_many(2, group="g")
    lease = api.claim_one(wait_seconds=20)
    db.execute("UPDATE jobs SET run_at = run_at - interval '5 minutes' WHERE id <> $1", lease["id"])
    assert api.stats()["verdict"] == "critical"


@pytest.mark.slow
def test_metrics_contain_the_verdict_of_queues_with_limits(
    api: Api, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    api.configure(health={"max_depth": 0})
    api.enqueue()

    def line() -> str:
        return next(
            (line for line in api.http.get("/metrics").text.splitlines() if f'health{{queue="{api.queue}"}}' in line),
            "",
        )

    wait_until(lambda: line().endswith(" 2.0"))
    api.configure()
    eventually(lambda: line() == "")
