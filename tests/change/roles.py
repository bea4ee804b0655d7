"""Two roles as an operator makes them: one owns and migrates, one serves. And what Postgres wrote down of the one that serves."""

import re
from pathlib import Path

from app.db import migrations
from tests.database import Loop, TestDatabase, create_empty_database

OWNER, SERVER = "change_owner", "change_server"

# Roles belong to the server, which other databases of this run share. The owner may not make any, so the group is there first.
# Every statement of the one that serves is logged.
MADE = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        CREATE ROLE longshore_broker NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{OWNER}') THEN
        CREATE ROLE {OWNER} LOGIN NOSUPERUSER;
        CREATE ROLE {SERVER} LOGIN NOSUPERUSER IN ROLE longshore_broker;
        ALTER ROLE {SERVER} SET log_statement = 'all';
    END IF;
END
$$;
"""


def as_role(dsn: str, role: str) -> str:
    assert "//postgres@" in dsn
    return dsn.replace("//postgres@", f"//{role}@")


def owned_database(postgres: str, loop: Loop, name: str) -> TestDatabase:
    """Migrated by its owner, who is nothing special. We look into it as the superuser."""
    database = TestDatabase(create_empty_database(postgres, loop, name), loop)
    database.execute(MADE)
    database.execute(f'ALTER DATABASE "{name}" OWNER TO {OWNER}')
    migrations.upgrade(as_role(database.dsn, OWNER))
    return database


class ServerLog:
    """What Postgres has logged since."""

    def __init__(self, database: TestDatabase) -> None:
        told, pid = database.row("SELECT current_setting('data_directory'), pg_backend_pid()")
        data = Path(
            told.replace("/proc/self", f"/proc/{pid}")
        ).resolve()  # below root's home the server knows it by its working directory
        self._file = data.parent / "postgres.log"
        self._begin = self._file.stat().st_size

    def text(self) -> str:
        with self._file.open(errors="replace") as log:
            log.seek(self._begin)
            return log.read()

    def denied(self) -> list[str]:
        return re.findall(r"ERROR: +(?:permission denied|must be owner).*", self.text())

    def statements(self) -> set[str]:
        """Names of ours that were run."""
        return set(re.findall(r"execute \S+: /\* (\w+) \*/", self.text()))
