"""The benchmark in a tiny size: it runs, reports its results, and fails if a job is rejected or
lost."""

import msgspec
import pytest

from bench import probes
from bench.__main__ import parse_options
from bench.brokers import LoadFailed, load
from bench.contest import Contest, build_report, selected_paths
from bench.database import Database
from bench.load.order import QUEUE, Order
from bench.ours import Longshore
from bench.report import Report, markdown
from bench.result import Peer
from tests.broker import RunningBroker
from tests.database import Loop, TestDatabase

TINY = probes.Size(samples=20, waiting=5)
SECONDS = 0.3  # CPU times have a resolution of 0.01 s
PATHS = ("enqueue_1", "enqueue_1000_mixed", "claim_100_settle_100")
DATABASE_PATHS = ("insert_1", "enqueue_1000", "claim_100_settle_100")


def quiet(_line: str) -> None:
    pass


@pytest.fixture(scope="module")
def report(postgres: str, loop: Loop) -> Report:
    contenders: list[Peer] = [Longshore("ours-1", paths=PATHS, warm_up=0.05), Database(paths=DATABASE_PATHS)]
    contest = Contest(postgres, ours=contenders, peers=[], only=[], show=quiet)
    loop.run(contest.run(rounds=1, seconds=SECONDS))
    wake_ups = loop.run(probes.run(postgres, "wake_across", TINY, quiet))
    return build_report(
        contest, date="today", machine={}, settings={}, rounds=1, seconds=SECONDS, probes={"wake_across": wake_ups}
    )


def test_every_path_of_every_contender_has_a_row_with_its_resources(report: Report) -> None:
    assert [(row.contender, row.path) for row in report.rows] == [
        *(("ours-1", path) for path in PATHS),
        *(("database", path) for path in DATABASE_PATHS),
    ]
    assert all(row.least <= row.rate <= row.most and row.rate > 0 for row in report.rows)
    assert all(bool(row.server) == (row.contender == "ours-1") for row in report.rows)


def test_goals_are_ratios_of_this_run_or_marked_as_not_measured(report: Report) -> None:
    by_goal = {goal.goal: goal for goal in report.goals}
    ours, limit = (
        next(row.rate for row in report.rows if (row.contender, row.path) == (name, "claim_100_settle_100"))
        for name in ("ours-1", "database")
    )
    against_the_limit = by_goal["≥ 0.75 of the database alone"]
    assert against_the_limit.ratio == pytest.approx(ours / limit)
    assert against_the_limit.verdict == ("met" if ours >= 0.75 * limit else "missed")
    assert by_goal["p50 ≤ 2 × the enqueue's own answer"].verdict in ("met", "missed")
    assert by_goal["≥ 5 × the fastest Postgres peer"].verdict == "not measured in this run"


def test_table_ends_with_the_goals_and_json_contains_everything(report: Report) -> None:
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    table = markdown(report)
    assert table.index("| enqueue_1 | ours-1 | HTTP/1.1, JSON |") < table.index("## Goals")
    assert table.rstrip().splitlines()[-1].startswith("| coalescing |")


def order(broker: RunningBroker, kind: str, *, jobs: int = 0, batch: int = 5) -> Order:
    return Order(kind=kind, ports=[int(broker.base.rpartition(":")[2])], connections=2, jobs=jobs, batch=batch)


def test_rejected_call_fails_the_run(broker: RunningBroker, db: TestDatabase, loop: Loop) -> None:
    with pytest.raises(LoadFailed, match="status 413, not 201"):
        loop.run(load(order(broker, "enqueue", batch=1001)))


@pytest.mark.parametrize("kind", ["singles", "batches", "carried", "like_drain"])
def test_lost_job_fails_the_run(broker: RunningBroker, db: TestDatabase, loop: Loop, kind: str) -> None:
    loop.run(load(order(broker, "fill", jobs=10)))
    with pytest.raises(LoadFailed, match="jobs are missing"):
        loop.run(load(order(broker, kind, jobs=11)))


def test_name_prefixes_and_paths_select_the_measurements() -> None:
    ours = Longshore("ours-1", paths=PATHS)
    assert selected_paths(ours, []) == selected_paths(ours, ["OURS"]) == PATHS
    assert selected_paths(ours, ["enqueue_1", "enqueue"]) == ("enqueue_1",)
    assert selected_paths(ours, ["graphile"]) == ()


def test_quick_run_is_short_and_keeps_no_results() -> None:
    quick, full = parse_options(["--quick"]), parse_options([])
    assert (quick.no_peers, full.no_peers) == (True, False)
    assert quick.rounds * quick.seconds < full.rounds * full.seconds
    assert quick.results != full.results == parse_options(["--no-peers"]).results


def test_jobs_are_enqueued_into_the_queue_that_workers_poll(
    broker: RunningBroker, db: TestDatabase, loop: Loop
) -> None:
    loop.run(load(order(broker, "fill", jobs=3)))
    assert broker.http.get(f"/queues/{QUEUE}/stats").json()["counts"]["ready"] == 3
