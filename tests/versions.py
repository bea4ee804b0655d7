"""The supported Postgres versions: the available and the missing ones on this machine."""

from pathlib import Path

from app.db.embedded.binaries import version_of
from app.db.embedded.server import find_binaries

SUPPORTED = range(15, 19)


def _available_versions() -> dict[int, Path]:
    packaged = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "postgres").is_file()]
    folders = {version_of(folder): folder for folder in (*packaged, find_binaries())}
    return {version: folders[version] for version in sorted(folders) if version in SUPPORTED}


AVAILABLE_VERSIONS = _available_versions()
MISSING_VERSIONS = [version for version in SUPPORTED if version not in AVAILABLE_VERSIONS]
