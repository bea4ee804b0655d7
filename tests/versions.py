"""Which Postgres versions the tests can be run on here, and which of the supported ones cannot."""

from pathlib import Path

from app.db.embedded.binaries import version_of
from app.db.embedded.server import find_binaries

SUPPORTED = range(15, 19)


def _at_hand() -> dict[int, Path]:
    packaged = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "postgres").is_file()]
    found = {version_of(folder): folder for folder in (*packaged, find_binaries())}
    return {version: found[version] for version in sorted(found) if version in SUPPORTED}


AT_HAND = _at_hand()
NOT_AT_HAND = [version for version in SUPPORTED if version not in AT_HAND]
