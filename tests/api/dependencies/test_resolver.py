"""Dependencies are resolved exactly once.

That holds with several resolvers at the same time, and if a broker dies before it has resolved
them.
"""

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
from tests.api.dependencies.job_graph import enqueue_graph, enqueue_pair
from tests.api_client import Api, Json
from tests.broker import broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore' AND datname = current_database()"


@pytest.fixture
def database_without_broker(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database without a broker, unless the test starts one."""
    database = TestDatabase(create_database(postgres, loop, "without_broker"), loop)
    yield database
    database.close()


def settle_without_resolving(
    broker_services: Broker, loop: Loop, claimed: Json, outcome: Outcome = Outcome.COMPLETE
) -> None:
    """Settles a job without resolving its dependencies: `broker_services` run no maintenance."""
    error = SentError(message="it broke") if outcome is Outcome.FAIL else UNSET
    item = Settlement(
        job_id=UUID(claimed["id"]), lease_token=claimed["lease_token"], outcome=outcome, error=error, retryable=False
    )
    loop.run(broker_services.settlements.settle([item], FULL_ACCESS))


def resolve_concurrently(broker_services: Broker, loop: Loop, count: int) -> None:
    async def resolve_all() -> None:
        await asyncio.gather(
            *[
                DependencyResolver(
                    infra=broker_services.infra, queues=broker_services.queues, events=broker_services.events
                ).run_once()
                for _ in range(count)
            ]
        )

    loop.run(resolve_all())


def test_child_is_unblocked_when_another_broker_settled_its_parent(
    api: Api, broker_services: Broker, loop: Loop
) -> None:
    graph = enqueue_pair(api)
    settle_without_resolving(broker_services, loop, graph.claim("parent"))
    graph.complete("child")


def test_children_are_resolved_from_the_finished_parent_record_alone(api: Api, db: TestDatabase) -> None:
    """As after a restore: the parent is gone, and only its finished-parent record is there."""
    graph = enqueue_graph(api, {"parent": [], "a": ["parent"], "b": ["parent"]}, b={"on_parent_failure": "run"})
    parent = graph.ids["parent"]
    db.execute(
        "WITH gone AS (DELETE FROM jobs WHERE id = $1 RETURNING lane, id) "
        "INSERT INTO finished_parents SELECT lane, id, 'dead' FROM gone",
        parent,
    )
    graph.api.job(graph.ids["a"], wait_seconds=20)
    graph.wait_for_states(a="cancelled", b="ready")


def test_resolving_a_finished_parent_twice_changes_nothing(api: Api, db: TestDatabase) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "child": ["a", "b"]})
    graph.complete("a")
    wait_until(lambda: db.value("SELECT cardinality(waiting_for) FROM jobs WHERE id = $1", graph.ids["child"]) == 1)
    # The resolver deletes the finished-parent record after it has updated the child.
    wait_until(lambda: db.value("SELECT count(*) FROM finished_parents") == 0)
    for table, columns in (("dependents", "lane, id, $2"), ("finished_parents", "lane, id, 'completed'")):
        db.execute(
            f"INSERT INTO {table} SELECT {columns} FROM finished_jobs WHERE id = $1 AND $2::uuid IS NOT NULL",
            graph.ids["a"],
            graph.ids["child"],
        )
    wait_until(lambda: db.value("SELECT count(*) FROM finished_parents") == 0)
    assert graph.state("child") == "blocked"
    assert api.counts() == {"completed": 1, "ready": 1, "blocked": 1}
    graph.complete("b", "child")


def test_concurrent_resolvers_unblock_each_child_once(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    names = [f"c{n}" for n in range(100)]
    api.batch({"ref": "p"}, {"ref": "q"}, *[{"job_type": name, "depends_on": ["p", "q"]} for name in names])
    for claimed in api.claim(max_jobs=2)["jobs"]:
        settle_without_resolving(broker_services, loop, claimed)
    resolve_concurrently(broker_services, loop, 4)
    wait_until(lambda: api.counts() == {"completed": 2, "ready": 100})
    claimed_jobs = api.claim(max_jobs=1000)["jobs"]
    assert sorted(job["job_type"] for job in claimed_jobs) == sorted(names)
    assert {job["deliveries"] for job in claimed_jobs} == {1}


def test_concurrent_resolvers_cancel_each_child_once(api: Api, broker_services: Broker, loop: Loop) -> None:
    api.batch(
        {"ref": "p"}, *[{"depends_on": ["p"]}] * 50, {"ref": "c", "depends_on": ["p"]}, *[{"depends_on": ["c"]}] * 50
    )
    settle_without_resolving(broker_services, loop, api.claim_one(), Outcome.FAIL)
    resolve_concurrently(broker_services, loop, 4)
    wait_until(lambda: api.counts() == {"dead": 1, "cancelled": 101})


def test_parents_that_finish_concurrently_unblock_their_child_once(api: Api, background: Background, dsn: str) -> None:
    with threaded_broker(TEST_SETTINGS, dsn) as second:
        other = Api(second.http, api.queue)
        for round_number in range(8):
            names = [f"p{round_number}.{n}" for n in range(6)]
            graph = enqueue_graph(api, {**{name: [] for name in names}, f"c{round_number}": names})
            claimed = [graph.claim(name) for name in names]
            background.together(*[partial((api, other)[n % 2].complete, job) for n, job in enumerate(claimed)])
            graph.complete(f"c{round_number}")
    assert api.counts() == {"completed": 56}


def test_child_enqueued_while_its_parent_finishes_is_not_left_blocked(api: Api, background: Background) -> None:
    for round_number in range(15):
        parent = api.enqueue(job_type=f"p{round_number}")
        claimed = api.claim_one(job_types=[f"p{round_number}"])
        child = partial(api.enqueue, job_type=f"c{round_number}", depends_on=[parent["id"]])
        background.together(partial(api.complete, claimed), child, child)
        for _ in range(2):
            api.complete(api.claim_one(job_types=[f"c{round_number}"], wait_seconds=20))
    assert api.counts() == {"completed": 45}


def test_concurrently_enqueued_children_are_all_unblocked(api: Api, background: Background) -> None:
    parent = api.enqueue(job_type="parent")
    background.together(*[partial(api.batch, *[{"depends_on": [parent["id"]]}] * 5) for _ in range(12)])
    api.complete(api.claim_one())
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 60})


def test_concurrent_enqueues_with_the_same_parents_do_not_deadlock(api: Api, background: Background) -> None:
    queues = [f"{api.queue}-{n}" for n in range(3)]
    parents = [result["job_id"] for result in api.batch(*[{"queue": queue} for queue in queues * 4])["results"]]
    calls = [partial(api.enqueue, depends_on=parents[:: 1 if n % 2 else -1]) for n in range(16)]
    ends = [partial(api.post, "/jobs/cancel", {"ids": parents[n::3]}) for n in range(3)]
    background.together(*calls, *ends)
    wait_until(lambda: api.counts() == {"cancelled": 16})


def test_delayed_resolver_does_not_delete_a_newer_finished_parent_record(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    graph = enqueue_pair(api)
    graph.fail_permanently("parent")
    graph.wait_for_states(child="cancelled")
    api.post(f"/dead-letters/{graph.ids['parent']}/replay")
    new = api.enqueue(job_type="new", depends_on=[graph.ids["parent"]])
    parent = UUID(graph.ids["parent"])
    # The row lock delays the resolver of the new child.
    with db.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", new["id"]):
        graph.complete("parent")
        loop.run(dependencies.delete_finished_parents(broker_services.infra.db, lane_of(parent), [parent]))
        assert db.value("SELECT state FROM finished_parents WHERE id = $1", parent) == "completed"
    assert api.claim_one(job_types=["new"], wait_seconds=20)["id"] == new["id"]


@pytest.mark.slow
def test_children_are_unblocked_after_a_broker_is_killed_between_settlement_and_resolution(
    database_without_broker: TestDatabase, queue: str
) -> None:
    with broker_process(database_without_broker.dsn, log_level="error") as (broker, process):
        api = Api(broker.http, queue)
        graph = enqueue_pair(api)
        claimed = graph.claim("parent")
        # The row lock delays the resolution.
        with database_without_broker.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", graph.ids["child"]):
            api.complete(claimed)
            process.kill()
            # The server has rolled back the transactions of the killed broker.
            wait_until(lambda: database_without_broker.value(SESSIONS) == 0)
    assert database_without_broker.value("SELECT state FROM jobs WHERE id = $1", graph.ids["child"]) == "blocked"
    with threaded_broker(TEST_SETTINGS, database_without_broker.dsn) as second:
        survivor = Api(second.http, queue)
        assert survivor.claim_one(wait_seconds=20)["id"] == graph.ids["child"]
        assert survivor.counts() == {"completed": 1, "running": 1}
