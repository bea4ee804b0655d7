"""`distribute` does what is missing: each table has one kind, and a repeated run does nothing."""

from app.db.distribution import COPIED, LANED, LOCAL, SHARDED, role_steps, table_steps, tables
from app.db.session_settings import CLUSTER
from app.db.tables import metadata
from tests.sql.statements import TABLES_WITH_LANES


def test_every_table_has_a_kind() -> None:
    assert tables().keys() == {*metadata.tables, "alembic_version"}
    assert {name for name, kind in tables().items() if kind == SHARDED} == set(TABLES_WITH_LANES) == set(LANED)
    assert {tables()[name] for name in ("queues", "config_versions", "alembic_version")} == {COPIED}
    assert tables()["leaders"] == LOCAL


def test_jobs_are_sharded_before_the_tables_that_have_their_shards() -> None:
    sharded = [step.sql for step in table_steps({}) if "concurrently" in step.sql]
    assert "'jobs', 'lane', colocate_with => 'none'" in sharded[0]
    assert len(sharded) == len(LANED)
    assert all("colocate_with => 'jobs'" in sql for sql in sharded[1:])


def test_distributed_tables_have_no_step() -> None:
    assert table_steps(tables()) == []


def test_table_of_a_later_migration_is_the_only_step() -> None:
    (step,) = table_steps({name: kind for name, kind in tables().items() if name != "stat_rates"})
    assert step.text == "shard stat_rates by lane"


def test_role_gets_the_settings_that_a_node_lacks() -> None:
    complete = "\n".join(f"{name}={value}" for name, value in CLUSTER.items())
    assert role_steps("api", [complete, complete]) == []
    (step,) = role_steps("api", [complete, complete.replace("jit=off", "jit=on")])
    assert step.sql == "ALTER ROLE \"api\" SET jit = 'off'"


def test_name_of_a_role_is_quoted() -> None:
    assert 'ALTER ROLE "a""; DROP" SET' in role_steps('a"; DROP', [""])[0].sql
