"""The schema with every table that has lanes declared PARTITION BY HASH (lane).

On plain Postgres this is the nearest thing to a cluster sharded by lane. It is derived from the
text of the migrations, so that it cannot fall behind them."""

import re
from pathlib import Path

import asyncpg

from app.db import migrations

PARTS = 4

# A generic plan does not name the lane, and locks all partitions.
PLAN_WITH_LANE = "ALTER FUNCTION claim_jobs RESET plan_cache_mode"

_LANED = re.compile(r"CREATE TABLE (\w+) \(\n    lane +(?:(?!\n\)).)*\n\)(?P<options> WITH \([^)]*\))?;", re.DOTALL)
_DEFAULT = re.compile(r"CREATE TABLE (\w+) PARTITION OF finished_jobs DEFAULT;")
_DATED = "EXECUTE format('CREATE TABLE %I (LIKE finished_jobs)', partition);"
_DATED_PARTITIONED = f"""EXECUTE format('CREATE TABLE %I (LIKE finished_jobs) PARTITION BY HASH (lane)', partition);
    FOR part IN 0..{PARTS - 1} LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %I', partition || '_p' || part, partition)
            || format(' FOR VALUES WITH (MODULUS {PARTS}, REMAINDER %s)', part);
    END LOOP;"""


def partitioned_script(script: str) -> str:
    """Partitions the tables of a migration by lane.

    finished_jobs is already partitioned by time: each of its partitions is partitioned by lane
    too."""
    script = _LANED.sub(
        lambda table: _partition_table(
            table[0].removesuffix(";").removesuffix(table["options"] or ""), table[1], table["options"]
        ),
        script,
    )
    script = _DEFAULT.sub(lambda table: _partition_table(table[0].removesuffix(";"), table[1], None), script)
    return script.replace(_DATED, _DATED_PARTITIONED).replace(" CONCURRENTLY", "")


def _partition_table(table: str, name: str, options: str | None) -> str:
    parts = (
        f"CREATE TABLE {name}_p{part} PARTITION OF {name}"
        f" FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {part}){options or ''};"
        for part in range(PARTS)
    )
    return "\n".join([f"{table} PARTITION BY HASH (lane);", *parts])


def _scripts(direction: str) -> list[Path]:
    files = sorted((migrations.ROOT / "alembic" / "versions").glob(f"*.{direction}.sql"))
    assert files
    return files


async def partition_by_lane(dsn: str) -> None:
    """Drops the tables of a migrated, empty database and creates them partitioned.

    The row in alembic_version stays."""
    connection = await asyncpg.connect(dsn)
    try:
        for file in reversed(_scripts("down")):
            await connection.execute(file.read_text().replace(" CONCURRENTLY", ""))
        for file in _scripts("up"):
            await connection.execute(partitioned_script(file.read_text()))
        await connection.execute(PLAN_WITH_LANE)
    finally:
        await connection.close()
