"""The calculation of growth: its arithmetic on a made-up run, and that the page and the table it reads are there."""

from pathlib import Path

import msgspec
import pytest

from bench import growth
from bench.growth import (
    BEGIN,
    BUSY,
    END,
    FULL_PAGES,
    PAGE,
    PRIMARY_CORES,
    PRIMARY_WAL,
    STATEMENT_WAL,
    UPKEEP,
    Cost,
    Shape,
)
from bench.report import Report, Row

BATCHES = growth.SHAPES[1]
LIFE = Shape("test", ("enqueue_1000", "claim_100_carrying"), statements=2, network=1_000)


def row(path: str, contender: str = "ours-1", rate: float = 1_000, server: float = 50, database: float = 20) -> Row:
    return Row(contender, path, "HTTP", True, 1, rate, rate, rate, server, database, 1, "", "")


def run(*rows: Row, date: str = "today") -> Report:
    return Report(
        date=date, machine={"cores": "2"}, settings={}, rounds=1, seconds=1, rows=list(rows), probes={}, missing={}
    )


def whole(date: str = "today") -> Report:
    return run(*(row(path) for shape in growth.SHAPES for path in shape.paths), date=date)


def keep(report: Report, folder: Path) -> None:
    (folder / f"{report.date}.json").write_bytes(msgspec.json.encode(report))


def test_the_newest_run_that_has_every_path_is_taken(tmp_path: Path) -> None:
    for report in (whole("2026-01-01"), whole("2026-01-02"), run(row("enqueue_1"), date="2026-01-03")):
        keep(report, tmp_path)
    assert growth.newest(tmp_path).date == "2026-01-02"


def test_without_such_a_run_it_says_what_to_do(tmp_path: Path) -> None:
    keep(run(row("enqueue_1")), tmp_path)
    with pytest.raises(SystemExit, match="make bench"):
        growth.newest(tmp_path)


def test_a_life_costs_the_sum_of_its_paths_in_one_process_and_a_lane_gives_the_slower_one() -> None:
    enqueue, claim = LIFE.paths
    report = run(
        row(enqueue, "ours-2", rate=9_000, server=1),
        row(enqueue),
        row(claim, rate=400, server=30),
        row(claim, "ours-2", rate=500),
    )
    told = growth.cost(report, LIFE, wal=1_000)
    assert told.server == 80
    assert told.database == pytest.approx(40 * UPKEEP)
    assert told.wal == pytest.approx((1_000 + 2 * STATEMENT_WAL) * FULL_PAGES)
    assert told.lane == 500


def test_what_is_used_grows_with_the_rate_and_what_is_run_has_a_reserve() -> None:
    told = growth.need(100_000, LIFE, Cost(server=60, database=30, wal=1_000, lane=10_000))
    assert (told.broker, told.database, told.wal, told.network, told.commits) == (6, 3, 1e8, 1e8, 200_000)
    assert told.processes == round(6 / BUSY) == 10
    assert (told.connections, told.cores, told.lanes) == (100, 5, 17)
    assert told.kept == 100_000 * 86_400 * growth.KEPT


def test_a_primary_is_added_when_its_wal_or_its_cores_are_used_up() -> None:
    def primaries(*, wal: float, cores: float) -> tuple[int, str]:
        told = growth.need(1_000_000, LIFE, Cost(server=1, database=cores, wal=wal / 1e6, lane=1_000))
        return told.primaries, told.bound

    full = PRIMARY_WAL * BUSY
    assert primaries(wal=0.9 * full, cores=1) == (1, "WAL")
    assert primaries(wal=2.5 * full, cores=1) == (3, "WAL")
    assert primaries(wal=0.9 * full, cores=PRIMARY_CORES * BUSY * 3.5) == (4, "cores")


def test_it_runs_on_one_machine_then_on_one_postgres_then_on_citus() -> None:
    told = growth.cost(whole(), BATCHES, wal=1_000)
    assert [growth.place(growth.need(rate, BATCHES, told)).partition(" of")[0] for rate in (100, 20_000)] == [
        "one machine",
        "one Postgres",
    ]
    assert growth.place(growth.need(1_000_000, BATCHES, told)).startswith("Citus, ")
    assert growth.carried(told) == pytest.approx(2 * BUSY * 1e6 / (100 + 40 * UPKEEP))


def test_what_is_told_has_a_line_for_every_rate_and_every_assumption() -> None:
    part = growth.written(whole(), wal=1_000, buffers=9)
    assert all(part.count(f"\n| {rate:,} | ") == len(growth.SHAPES) for rate in growth.RATES)
    assert all(
        f"`{name}`" in part
        for name in ("BUSY", "UPKEEP", "FULL_PAGES", "STATEMENT_WAL", "PRIMARY_CORES", "PRIMARY_WAL", "KEPT")
    )


def test_the_table_of_costs_is_read_where_tables_are_fullest() -> None:
    assert growth.per_life("| a | 1 |\n| **WAL bytes, life** | **1,000** | **1,100** |\n", "WAL bytes, life") == 1_100
    told = (growth.HERE / "README.md").read_text()
    assert 0 < growth.per_life(told, "buffers, claim") < growth.per_life(told, "WAL bytes, life")


def test_only_what_is_between_the_marks_of_the_page_is_rewritten() -> None:
    page = PAGE.read_text()
    assert growth.replaced(f"before\n{BEGIN}\nold\n{END}\nafter", "new") == f"before\n{BEGIN}\nnew\n{END}\nafter"
    assert page.count(BEGIN) == page.count(END) == 1
    assert growth.replaced(page, page.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]) == page
