"""Two database roles as an operator creates them: one owns and migrates, one serves.

`ServerLog` reads the server log, which has all statements of the serving role."""

import re
from pathlib import Path

from app.db import migrations
from tests.database import Loop, TestDatabase, create_empty_database

OWNER_ROLE, BROKER_ROLE = "change_owner", "change_server"

# Roles belong to the server, which other databases of this run share. The owner may not create
# roles, so the group role is created first. Every statement of the serving role is logged.
CREATE_ROLES = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        CREATE ROLE longshore_broker NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{OWNER_ROLE}') THEN
        CREATE ROLE {OWNER_ROLE} LOGIN NOSUPERUSER;
        CREATE ROLE {BROKER_ROLE} LOGIN NOSUPERUSER IN ROLE longshore_broker;
        ALTER ROLE {BROKER_ROLE} SET log_statement = 'all';
    END IF;
END
$$;
"""


def as_role(dsn: str, role: str) -> str:
    assert "//postgres@" in dsn
    return dsn.replace("//postgres@", f"//{role}@")


def owned_database(postgres: str, loop: Loop, name: str) -> TestDatabase:
    """Creates a database that an owner without privileges has migrated.

    Tests read it as superuser."""
    database = TestDatabase(create_empty_database(postgres, loop, name), loop)
    database.execute(CREATE_ROLES)
    database.execute(f'ALTER DATABASE "{name}" OWNER TO {OWNER_ROLE}')
    migrations.upgrade(as_role(database.dsn, OWNER_ROLE))
    return database


class ServerLog:
    """The server log since the creation of this object."""

    def __init__(self, database: TestDatabase) -> None:
        folder, pid = database.row("SELECT current_setting('data_directory'), pg_backend_pid()")
        # Below root's home, the server addresses its folder by its working directory.
        data = Path(folder.replace("/proc/self", f"/proc/{pid}")).resolve()
        self._file = data.parent / "postgres.log"
        self._offset = self._file.stat().st_size

    def text(self) -> str:
        with self._file.open(errors="replace") as log:
            log.seek(self._offset)
            return log.read()

    def denied(self) -> list[str]:
        return re.findall(r"ERROR: +(?:permission denied|must be owner).*", self.text())

    def statements(self) -> set[str]:
        """Returns the names of the statements that were executed."""
        return set(re.findall(r"execute \S+: /\* (\w+) \*/", self.text()))
