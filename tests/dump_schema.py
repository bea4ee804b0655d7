"""Prints the schema that the migrations make: `make schema` writes it to alembic/schema.sql, `make test` compares."""

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
    """Without what depends on the version of the tool."""
    command = [str(find_binaries() / "pg_dump"), "--schema-only", "--no-owner", "--no-privileges", dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.sub(r"^(--.*|SET .*|SELECT pg_catalog.*|\\(un)?restrict .*)?\n", "", text, flags=re.MULTILINE).replace(
        ";\n", ";\n\n"
    )


if __name__ == "__main__":
    print(dump(), end="")
