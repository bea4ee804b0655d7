"""Exactly once: whoever tells the children, how many do it at once, and whoever dies before it is done."""

import asyncio
from collections.abc import Iterator
from functools import partial
from uuid import UUID

import pytest

from app.broker import Broker
from app.db.lanes import lane_of
from app.dependencies import store as dependencies
from app.http.authorization import FULL_ACCESS
from app.http.schema_types import UNSET
from app.leases.schemas import Outcome, SentError, Settlement
from app.maintenance.dependency_resolver import DependencyResolver
from tests.api import Api, Json
from tests.broker import broker_process, threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.dependencies.family import born, pair
from tests.polls import Background

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore' AND datname = current_database()"


@pytest.fixture
def deserted(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database that no broker looks after, unless the test starts one."""
    database = TestDatabase(create_database(postgres, loop, "deserted"), loop)
    yield database
    database.close()


def settle_and_die(broker_services: Broker, loop: Loop, held: Json, outcome: Outcome = Outcome.COMPLETE) -> None:
    """As a broker that has settled a job and not told its children: this house has no chores."""
    error = SentError(message="it broke") if outcome is Outcome.FAIL else UNSET
    item = Settlement(
        job_id=UUID(held["id"]), lease_token=held["lease_token"], outcome=outcome, error=error, retryable=False
    )
    loop.run(broker_services.settlements.settle([item], FULL_ACCESS))


def release_at_once(broker_services: Broker, loop: Loop, count: int) -> None:
    async def together() -> None:
        await asyncio.gather(
            *[
                DependencyResolver(broker_services.infra, broker_services.queues, broker_services.signals).run_once()
                for _ in range(count)
            ]
        )

    loop.run(together())


def test_children_hear_of_an_end_that_another_broker_has_not_told(
    api: Api, broker_services: Broker, loop: Loop
) -> None:
    family = pair(api)
    settle_and_die(broker_services, loop, family.claim("parent"))
    family.complete("child")


def test_children_hear_of_an_end_that_was_only_written_down(api: Api, db: TestDatabase) -> None:
    """As after a restore: the parent is gone, and only the note of its end is there."""
    family = born(api, {"parent": [], "a": ["parent"], "b": ["parent"]}, b={"on_parent_failure": "run"})
    parent = family.ids["parent"]
    db.execute(
        "WITH gone AS (DELETE FROM jobs WHERE id = $1 RETURNING lane, id) INSERT INTO endings SELECT lane, id, 'dead' FROM gone",
        parent,
    )
    family.api.job(family.ids["a"], wait_seconds=20)
    family.become(a="cancelled", b="ready")


def test_an_end_that_is_told_twice_changes_nothing(api: Api, db: TestDatabase) -> None:
    family = born(api, {"a": [], "b": [], "child": ["a", "b"]})
    family.complete("a")
    wait_until(lambda: db.value("SELECT cardinality(awaits) FROM jobs WHERE id = $1", family.ids["child"]) == 1)
    wait_until(
        lambda: db.value("SELECT count(*) FROM endings") == 0
    )  # the broker forgets the end after it has changed the child
    for table, columns in (("dependents", "lane, id, $2"), ("endings", "lane, id, 'completed'")):
        db.execute(
            f"INSERT INTO {table} SELECT {columns} FROM finished_jobs WHERE id = $1 AND $2::uuid IS NOT NULL",
            family.ids["a"],
            family.ids["child"],
        )
    wait_until(lambda: db.value("SELECT count(*) FROM endings") == 0)
    assert family.state("child") == "blocked"
    assert api.counts() == {"completed": 1, "ready": 1, "blocked": 1}
    family.complete("b", "child")


def test_brokers_that_tell_the_same_children_at_once_release_each_once(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    names = [f"c{n}" for n in range(100)]
    api.batch({"ref": "p"}, {"ref": "q"}, *[{"job_type": name, "depends_on": ["p", "q"]} for name in names])
    for held in api.claim(max_jobs=2)["jobs"]:
        settle_and_die(broker_services, loop, held)
    release_at_once(broker_services, loop, 4)
    wait_until(lambda: api.counts() == {"completed": 2, "ready": 100})
    held_jobs = api.claim(max_jobs=1000)["jobs"]
    assert sorted(job["job_type"] for job in held_jobs) == sorted(names)
    assert {job["deliveries"] for job in held_jobs} == {1}


def test_brokers_that_tell_the_same_children_at_once_cancel_each_once(
    api: Api, broker_services: Broker, loop: Loop
) -> None:
    api.batch(
        {"ref": "p"}, *[{"depends_on": ["p"]}] * 50, {"ref": "c", "depends_on": ["p"]}, *[{"depends_on": ["c"]}] * 50
    )
    settle_and_die(broker_services, loop, api.claim_one(), Outcome.FAIL)
    release_at_once(broker_services, loop, 4)
    wait_until(lambda: api.counts() == {"dead": 1, "cancelled": 101})


def test_parents_that_end_at_once_release_their_child_once(api: Api, background: Background, dsn: str) -> None:
    with threaded_broker(QUICK, dsn) as second:
        other = Api(second.http, api.queue)
        for turn in range(8):
            names = [f"p{turn}.{n}" for n in range(6)]
            family = born(api, {**{name: [] for name in names}, f"c{turn}": names})
            held = [family.claim(name) for name in names]
            background.together(*[partial((api, other)[n % 2].complete, job) for n, job in enumerate(held)])
            family.complete(f"c{turn}")
    assert api.counts() == {"completed": 56}


def test_a_child_that_comes_while_its_parent_ends_never_waits_for_nothing(api: Api, background: Background) -> None:
    for turn in range(15):
        parent = api.enqueue(job_type=f"p{turn}")
        held = api.claim_one(job_types=[f"p{turn}"])
        child = partial(api.enqueue, job_type=f"c{turn}", depends_on=[parent["id"]])
        background.together(partial(api.complete, held), child, child)
        for _ in range(2):
            api.complete(api.claim_one(job_types=[f"c{turn}"], wait_seconds=20))
    assert api.counts() == {"completed": 45}


def test_children_that_come_at_once_all_hear_of_the_end(api: Api, background: Background) -> None:
    parent = api.enqueue(job_type="parent")
    background.together(*[partial(api.batch, *[{"depends_on": [parent["id"]]}] * 5) for _ in range(12)])
    api.complete(api.claim_one())
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 60})


def test_families_that_are_born_of_the_same_parents_at_once_do_not_deadlock(api: Api, background: Background) -> None:
    queues = [f"{api.queue}-{n}" for n in range(3)]
    parents = [result["job_id"] for result in api.batch(*[{"queue": queue} for queue in queues * 4])["results"]]
    calls = [partial(api.enqueue, depends_on=parents[:: 1 if n % 2 else -1]) for n in range(16)]
    ends = [partial(api.post, "/jobs/cancel", {"ids": parents[n::3]}) for n in range(3)]
    background.together(*calls, *ends)
    wait_until(lambda: api.counts() == {"cancelled": 16})


def test_a_broker_that_was_held_up_in_an_old_ending_does_not_take_a_new_one_away(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    family = pair(api)
    family.die("parent")
    family.become(child="cancelled")
    api.post(f"/dead-letters/{family.ids['parent']}/replay")
    new = api.enqueue(job_type="new", depends_on=[family.ids["parent"]])
    parent = UUID(family.ids["parent"])
    with db.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", new["id"]):  # who tells the new child has to wait
        family.complete("parent")
        loop.run(dependencies.delete_finished_parents(broker_services.infra.db, lane_of(parent), [parent]))
        assert db.value("SELECT state FROM endings WHERE id = $1", parent) == "completed"
    assert api.claim_one(job_types=["new"], wait_seconds=20)["id"] == new["id"]


def test_a_broker_that_is_killed_between_the_settlement_and_the_release_leaves_nobody_behind(
    deserted: TestDatabase, queue: str
) -> None:
    with broker_process(deserted.dsn, log_level="error") as (broker, process):
        api = Api(broker.http, queue)
        family = pair(api)
        held = family.claim("parent")
        with deserted.uncommitted(
            "SELECT FROM jobs WHERE id = $1 FOR UPDATE", family.ids["child"]
        ):  # the release has to wait
            api.complete(held)
            process.kill()
            wait_until(lambda: deserted.value(SESSIONS) == 0)  # what it had begun has been given up by the server too
    assert deserted.value("SELECT state FROM jobs WHERE id = $1", family.ids["child"]) == "blocked"
    with threaded_broker(QUICK, deserted.dsn) as second:
        rest = Api(second.http, queue)
        assert rest.claim_one(wait_seconds=20)["id"] == family.ids["child"]
        assert rest.counts() == {"completed": 1, "running": 1}
