"""Prints the schema that the migrations create.

`make schema` writes it to alembic/schema.sql; `make test` compares the two."""

import re
import subprocess
import tempfile
from pathlib import Path

from app.db.embedded.server import find_binaries
from tests.database import Loop, create_database, server


def dump() -> str:
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "data") as dsn:
        return dump_of(create_database(dsn, Loop(), "dump"))


def dump_of(dsn: str) -> str:
    """Dumps the schema of a database, without the lines that depend on the version of pg_dump."""
    command = [str(find_binaries() / "pg_dump"), "--schema-only", "--no-owner", "--no-privileges", dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.sub(r"^(--.*|SET .*|SELECT pg_catalog.*|\\(un)?restrict .*)?\n", "", text, flags=re.MULTILINE).replace(
        ";\n", ";\n\n"
    )


if __name__ == "__main__":
    print(dump(), end="")
