"""Installs what the benchmark needs into the ignored folder .bench, never into the product's
environment or lock file.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).parent.parent / ".bench"
MATPLOTLIB = "matplotlib==3.10.7"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the data of a server.

    It is beside the repository and not in /tmp, which may be in memory: there fsync costs nothing.
    """
    (HOME / "run").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME / "run") as folder:
        Path(folder).chmod(0o755)  # some servers run as other users
        yield Path(folder)


def python_environment(packages: Sequence[str]) -> Path:
    """Installs packages (`name==version`) into one environment, and returns its interpreter.

    Further calls add packages.
    """
    python = HOME / "venv" / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", "--without-pip", str(HOME / "venv")])
    # The system's pip, from outside: it is configured with the package index of this machine.
    pip = [
        "python3",
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
    ]
    _run([*pip, *packages])
    return python


def node_environment(packages: Sequence[str]) -> Path:
    """Installs packages (`name@version`), and returns the folder whose node_modules has them.

    Further calls add packages.
    """
    folder = HOME / "node"
    folder.mkdir(parents=True, exist_ok=True)
    missing = [package for package in packages if not _is_npm_installed(folder, package)]
    if missing:
        _run(
            [
                "npm",
                "install",
                "--prefix",
                str(folder),
                "--save-exact",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                *missing,
            ]
        )
    return folder


def _is_npm_installed(folder: Path, package: str) -> bool:
    name, _, version = package.rpartition("@")
    manifest = folder / "node_modules" / name / "package.json"
    return manifest.exists() and json.loads(manifest.read_text())["version"] == version


def install_debian_packages(packages: Sequence[str]) -> str | None:
    """Installs Debian packages if permitted. Returns None, or a sentence that names the missing ones."""
    missing = [package for package in packages if not _is_installed(package)]
    if not missing:
        return None
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            subprocess.run(
                ["apt-get", "-qq", *command],
                env=environment,
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        missing = [package for package in missing if not _is_installed(package)]
    return f"Debian packages are missing: {' '.join(missing)}" if missing else None


def _is_installed(package: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    status = subprocess.run(["dpkg-query", "-W", "-f=${Status}", package], capture_output=True, text=True, check=False)
    return status.stdout.endswith("ok installed")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} … failed:\n{(done.stderr or done.stdout)[-2000:].strip()}")
