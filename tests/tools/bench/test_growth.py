"""The capacity calculation: its arithmetic on a made-up run, and the page and table that it
reads."""

from pathlib import Path

import msgspec
import pytest

from bench import growth
from bench.growth import (
    BEGIN,
    END,
    FULL_PAGE_FACTOR,
    MAINTENANCE_FACTOR,
    PAGE,
    PRIMARY_CORES,
    PRIMARY_WAL,
    STATEMENT_WAL,
    UTILIZATION,
    Cost,
    Shape,
)
from bench.report import Report, Row

BATCHES = growth.SHAPES[1]
LIFECYCLE = Shape("test", ("enqueue_1000", "claim_100_carrying"), statements=2, network=1_000)


def row(path: str, contender: str = "ours-1", rate: float = 1_000, server: float = 50, database: float = 20) -> Row:
    return Row(contender, path, "HTTP", True, 1, rate, rate, rate, server, database, 1, "", "")


def run(*rows: Row, date: str = "today") -> Report:
    return Report(
        date=date, machine={"cores": "2"}, settings={}, rounds=1, seconds=1, rows=list(rows), probes={}, missing={}
    )


def complete_run(date: str = "today") -> Report:
    return run(*(row(path) for shape in growth.SHAPES for path in shape.paths), date=date)


def save(report: Report, folder: Path) -> None:
    (folder / f"{report.date}.json").write_bytes(msgspec.json.encode(report))


def test_newest_run_with_all_paths_is_used(tmp_path: Path) -> None:
    for report in (complete_run("2026-01-01"), complete_run("2026-01-02"), run(row("enqueue_1"), date="2026-01-03")):
        save(report, tmp_path)
    assert growth.newest_report(tmp_path).date == "2026-01-02"


def test_missing_run_exits_with_the_command_to_run(tmp_path: Path) -> None:
    save(run(row("enqueue_1")), tmp_path)
    with pytest.raises(SystemExit, match="make bench"):
        growth.newest_report(tmp_path)


def test_cost_of_a_lifecycle_is_the_sum_of_its_paths_and_a_lane_has_the_rate_of_the_slower_path() -> None:
    enqueue, claim = LIFECYCLE.paths
    report = run(
        row(enqueue, "ours-2", rate=9_000, server=1),
        row(enqueue),
        row(claim, rate=400, server=30),
        row(claim, "ours-2", rate=500),
    )
    result = growth.cost(report, LIFECYCLE, wal=1_000)
    assert result.server == 80
    assert result.database == pytest.approx(40 * MAINTENANCE_FACTOR)
    assert result.wal == pytest.approx((1_000 + 2 * STATEMENT_WAL) * FULL_PAGE_FACTOR)
    assert result.lane == 500


def test_usage_grows_with_the_rate_and_provisioning_has_a_reserve() -> None:
    result = growth.need(100_000, LIFECYCLE, Cost(server=60, database=30, wal=1_000, lane=10_000))
    assert (result.broker, result.database, result.wal, result.network, result.commits) == (6, 3, 1e8, 1e8, 200_000)
    assert result.processes == round(6 / UTILIZATION) == 10
    assert (result.connections, result.cores, result.lanes) == (100, 5, 17)
    assert result.kept == 100_000 * 86_400 * growth.FINISHED_JOB_BYTES


def test_primary_is_added_when_wal_or_cores_are_exhausted() -> None:
    def primaries(*, wal: float, cores: float) -> tuple[int, str]:
        result = growth.need(1_000_000, LIFECYCLE, Cost(server=1, database=cores, wal=wal / 1e6, lane=1_000))
        return result.primaries, result.bound

    full = PRIMARY_WAL * UTILIZATION
    assert primaries(wal=0.9 * full, cores=1) == (1, "WAL")
    assert primaries(wal=2.5 * full, cores=1) == (3, "WAL")
    assert primaries(wal=0.9 * full, cores=PRIMARY_CORES * UTILIZATION * 3.5) == (4, "cores")


def test_deployment_grows_from_one_machine_to_one_postgres_to_citus() -> None:
    result = growth.cost(complete_run(), BATCHES, wal=1_000)
    assert [
        growth.describe_deployment(growth.need(rate, BATCHES, result)).partition(" of")[0] for rate in (100, 20_000)
    ] == [
        "one machine",
        "one Postgres",
    ]
    assert growth.describe_deployment(growth.need(1_000_000, BATCHES, result)).startswith("Citus, ")
    assert growth.lives_per_second(result) == pytest.approx(2 * UTILIZATION * 1e6 / (100 + 40 * MAINTENANCE_FACTOR))


def test_text_has_a_line_for_every_rate_and_every_assumption() -> None:
    text = growth.render(complete_run(), wal=1_000, buffers=9)
    assert all(text.count(f"\n| {rate:,} | ") == len(growth.SHAPES) for rate in growth.RATES)
    assert all(
        f"`{name}`" in text
        for name in (
            "UTILIZATION",
            "MAINTENANCE_FACTOR",
            "FULL_PAGE_FACTOR",
            "STATEMENT_WAL",
            "PRIMARY_CORES",
            "PRIMARY_WAL",
            "FINISHED_JOB_BYTES",
        )
    )


def test_costs_are_read_from_the_column_with_the_fullest_tables() -> None:
    assert growth.per_life("| a | 1 |\n| **WAL bytes, life** | **1,000** | **1,100** |\n", "WAL bytes, life") == 1_100
    result = (growth.HERE / "README.md").read_text()
    assert 0 < growth.per_life(result, "buffers, claim") < growth.per_life(result, "WAL bytes, life")


def test_only_the_text_between_the_markers_is_replaced() -> None:
    page = PAGE.read_text()
    assert growth.replace_part(f"before\n{BEGIN}\nold\n{END}\nafter", "new") == f"before\n{BEGIN}\nnew\n{END}\nafter"
    assert page.count(BEGIN) == page.count(END) == 1
    assert growth.replace_part(page, page.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]) == page
