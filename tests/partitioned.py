"""The same schema with every laned table declared PARTITION BY HASH (lane): on plain Postgres, the nearest thing to a cluster sharded by
lane. Derived from the migrations' own text, so that it cannot fall behind them."""

import re
from pathlib import Path

import asyncpg

from app.db import migrations

PARTS = 4

_LANED = re.compile(r"CREATE TABLE (\w+) \(\n    lane  (?:(?!\n\)).)*\n\)(?P<options> WITH \([^)]*\))?;", re.DOTALL)
_DEFAULT = re.compile(r"CREATE TABLE (\w+) PARTITION OF finished_jobs DEFAULT;")
_DATED = "EXECUTE format('CREATE TABLE %I (LIKE finished_jobs)', partition);"
_DATED_IN_PARTS = f"""EXECUTE format('CREATE TABLE %I (LIKE finished_jobs) PARTITION BY HASH (lane)', partition);
    FOR part IN 0..{PARTS - 1} LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %I', partition || '_p' || part, partition)
            || format(' FOR VALUES WITH (MODULUS {PARTS}, REMAINDER %s)', part);
    END LOOP;"""


def partitioned(script: str) -> str:
    """finished_jobs is partitioned by time already: each of its partitions is divided by lane once more."""
    script = _LANED.sub(
        lambda table: _in_parts(
            table[0].removesuffix(";").removesuffix(table["options"] or ""), table[1], table["options"]
        ),
        script,
    )
    script = _DEFAULT.sub(lambda table: _in_parts(table[0].removesuffix(";"), table[1], None), script)
    return script.replace(_DATED, _DATED_IN_PARTS).replace(" CONCURRENTLY", "")


def _in_parts(table: str, name: str, options: str | None) -> str:
    parts = (
        f"CREATE TABLE {name}_p{part} PARTITION OF {name} FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {part}){options or ''};"
        for part in range(PARTS)
    )
    return "\n".join([f"{table} PARTITION BY HASH (lane);", *parts])


def _scripts(direction: str) -> list[Path]:
    files = sorted((migrations.ROOT / "alembic" / "versions").glob(f"*.{direction}.sql"))
    assert files
    return files


async def divide(dsn: str) -> None:
    """Takes the tables of a migrated, empty database away and makes them anew in parts; the mark of the revision stays."""
    connection = await asyncpg.connect(dsn)
    try:
        for file in reversed(_scripts("down")):
            await connection.execute(file.read_text().replace(" CONCURRENTLY", ""))
        for file in _scripts("up"):
            await connection.execute(partitioned(file.read_text()))
    finally:
        await connection.close()
