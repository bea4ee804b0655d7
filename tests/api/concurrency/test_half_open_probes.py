"""Half-open probes: after a cool-down one job goes first, and decides about the others."""

from collections.abc import Callable

import pytest

from tests.api.concurrency.conftest import Expire, ids
from tests.api.concurrency.cooling_group import HOUR, CoolingGroup, count_cooldowns, end_cooldowns
from tests.api_client import Api, Json, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background, parked_polls

pytestmark = pytest.mark.slow


def test_successful_probe_ends_the_cooldown(cooling_group: CoolingGroup, db: TestDatabase) -> None:
    end_cooldowns(db)
    cooling_group.api.complete(cooling_group.claim_probe())
    assert cooling_group.complete_all()
    assert cooling_group.api.counts()["completed"] >= 4
    wait_until(lambda: count_cooldowns(db, cooling_group.api) == 0)


def test_failed_job_is_the_probe_of_a_strict_group(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    cooling_group = CoolingGroup(api)
    end_cooldowns(db)
    completed: list[Json] = []
    while len(completed) < 4:
        completed.append(api.claim_one(wait_seconds=20))
        api.complete(completed[-1])
    assert ids(completed) == cooling_group.jobs


def test_probe_that_fails_with_group_scope_restarts_the_cooldown(cooling_group: CoolingGroup, db: TestDatabase) -> None:
    for _ in range(3):
        end_cooldowns(db)
        cooling_group.api.fail(cooling_group.claim_probe(), scope="group", retry_after_seconds=HOUR)
        assert cooling_group.delivers_nothing()
    end_cooldowns(db)
    cooling_group.api.complete(cooling_group.claim_probe())
    assert cooling_group.complete_all()


def test_waiting_polls_get_no_job_of_the_group_when_the_probe_fails(
    cooling_group: CoolingGroup, db: TestDatabase, background: Background
) -> None:
    api = cooling_group.api
    for number in range(6):
        end_cooldowns(db)
        probe = cooling_group.claim_probe()
        polls = background.claims(3, api)
        wait_until(lambda: parked_polls(api.http) == 3)
        api.fail(probe, scope="group", retry_after_seconds=HOUR)
        api.batch(*[{"group": f"other-{number}-{poll}"} for poll in range(3)])
        claimed = [job for poll in polls for job in poll.result(20)["jobs"]]
        assert "a" not in [job["group"] for job in claimed]
        for job in claimed:
            api.complete(job)


@pytest.mark.parametrize(
    "requeue",
    [
        lambda api, job, expire: api.release(job),
        lambda api, job, expire: api.snooze(job, 0),
        lambda api, job, expire: api.fail(job, retry_after_seconds=0),
        lambda api, job, expire: expire(job),
    ],
    ids=["release", "snooze", "failure with scope job", "expiry"],
)
def test_requeued_probe_is_followed_by_another_probe(
    cooling_group: CoolingGroup, db: TestDatabase, expire: Expire, requeue: Callable[[Api, Json, Expire], object]
) -> None:
    end_cooldowns(db)
    requeue(cooling_group.api, cooling_group.claim_probe(), expire)
    cooling_group.api.complete(cooling_group.claim_probe())
    assert cooling_group.complete_all()


@pytest.mark.parametrize(
    "end",
    [
        lambda api, job: api.fail(job, retryable=False),
        lambda api, job: api.fail(job, retry_after_seconds=HOUR),
        lambda api, job: (api.cancel(job, status=202), api.release(job)),
    ],
    ids=["dead letter", "retry with scope job", "cancel"],
)
def test_probe_that_ends_without_a_group_failure_ends_the_cooldown(
    cooling_group: CoolingGroup, db: TestDatabase, end: Callable[[Api, Json], object]
) -> None:
    end_cooldowns(db)
    end(cooling_group.api, cooling_group.claim_probe())
    # In a strict group the others wait for the retry anyway.
    assert cooling_group.strict or cooling_group.complete_all()
    db.execute("UPDATE jobs SET run_at = now() WHERE state = 'scheduled'")
    wait_until(lambda: "scheduled" not in cooling_group.api.counts())
    assert cooling_group.complete_all()
    wait_until(lambda: count_cooldowns(db, cooling_group.api) == 0)


@pytest.mark.parametrize("removal", ["cancel", "delay", "purge"])
def test_unstarted_probe_that_is_removed_is_replaced(
    cooling_group: CoolingGroup, db: TestDatabase, removal: str
) -> None:
    end_cooldowns(db)
    probe = {"id": str(wait_until(lambda: probe_of(db, cooling_group.api)))}
    if removal == "cancel":
        cooling_group.api.cancel(probe)
    elif removal == "delay":
        cooling_group.api.change(probe, run_at=db.instant(HOUR))
    else:
        cooling_group.api.post(f"/queues/{cooling_group.api.queue}/purge", {"dry_run": False})
        cooling_group.api.enqueue_many(2, group="a")
    wait_until(
        lambda: (
            count_cooldowns(db, cooling_group.api) == 0 or probe_of(db, cooling_group.api) not in (None, probe["id"])
        )
    )
    assert cooling_group.complete_all()


def probe_of(db: TestDatabase, api: Api) -> object:
    return db.value(
        "SELECT probe_job_id::text FROM group_cooldowns JOIN queues ON lane / 256 = queues.id WHERE name = $1",
        api.queue,
    )


def test_cooldown_of_an_empty_group_is_cleared(cooling_group: CoolingGroup, db: TestDatabase) -> None:
    cooling_group.api.post("/jobs/cancel", {"filter": {"queue": cooling_group.api.queue}})
    end_cooldowns(db)
    wait_until(lambda: count_cooldowns(db, cooling_group.api) == 0)
    job = cooling_group.api.enqueue(group="a")
    assert cooling_group.api.claim_one(wait_seconds=20)["id"] == job["id"]


def test_end_of_a_cooldown_wakes_a_waiting_poll(isolated_api: Api, background: Background) -> None:
    jobs = isolated_api.enqueue_many(3, group="a")
    settled = isolated_api.fail(isolated_api.claim_one(), scope="group", retry_after_seconds=1)
    poll = background.claim(isolated_api)
    probe = poll.result(20)["jobs"][0]
    assert probe["id"] in jobs
    assert parse_time(isolated_api.job(probe["id"])["started_at"]) >= parse_time(settled["run_at"])
    others = background.claims(2, isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 2)
    isolated_api.complete(probe)
    assert sorted(job["id"] for poll in others for job in poll.result(20)["jobs"]) == sorted(set(jobs) - {probe["id"]})


def test_each_cooldown_ends_on_time_without_a_scan(postgres: str, loop: Loop, queue: str) -> None:
    dsn = create_database(postgres, loop, "cooldowns without scans")
    settings = TEST_SETTINGS.model_copy(update={"sweep_seconds": HOUR})
    with threaded_broker(settings, dsn) as broker:
        api = Api(broker.http, queue)
        groups = ["a", "b", "c"]
        _, second_jobs = [[api.enqueue(group=group)["id"] for group in groups] for _ in range(2)]
        for seconds, job in enumerate(api.claim(max_jobs=3)["jobs"], 1):
            api.fail(job, scope="group", retryable=False, retry_after_seconds=seconds)
        assert [api.claim_one(wait_seconds=20)["id"] for _ in groups] == second_jobs


# Several brokers


def test_broker_started_during_a_cooldown_respects_it(cooling_group: CoolingGroup, dsn: str, db: TestDatabase) -> None:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        second = Api(broker.http, cooling_group.api.queue)
        assert second.claim(max_jobs=10)["jobs"] == []
        assert second.enqueue(group="a")["state"] == "ready"
        end_cooldowns(db)
        probe = second.claim_one(max_jobs=10, wait_seconds=20)
        assert cooling_group.delivers_nothing()
        second.complete(probe)
    assert cooling_group.complete_all()


def test_cooldown_reaches_another_broker(api: Api, second_api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=3)
    cooling_group = CoolingGroup(second_api)
    assert CoolingGroup.delivers_nothing(cooling_group)
    end_cooldowns(db)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    assert cooling_group.complete_all()


def test_cooldown_that_ends_at_once_still_uses_a_probe(api: Api) -> None:
    """The jobs that were ready when the cool-down began have not been made pending yet."""
    api.enqueue_many(5, group="a")
    api.fail(api.claim_one(), scope="group", retryable=False)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    claimed: list[Json] = []
    while len(claimed) < 3:
        claimed += api.claim(max_jobs=10, wait_seconds=20)["jobs"]
    assert api.counts() == {"dead": 1, "completed": 1, "running": 3}
