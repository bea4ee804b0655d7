"""Supply chain (docs/reliability/faults.md#e18): packages pinned by hash, no host names, an
SBOM."""

import re
import subprocess

from app.db.migrations import ROOT
from tests.tools.dump_sbom import sbom

LOCK = (ROOT / "requirements.lock").read_text()
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def test_every_package_of_the_lock_file_is_pinned_by_hash() -> None:
    packages = re.split(r"\n(?=[A-Za-z0-9])", LOCK.partition("\n#    make lock\n")[2])
    assert len(packages) > 30
    assert [
        package
        for package in packages
        if not re.match(r"[A-Za-z0-9._-]+==", package) or "--hash=sha256:" not in package
    ] == []


def test_lock_file_names_no_host() -> None:
    assert re.findall(r"https?://|--index-url|--find-links|@ file:", LOCK) == []


def test_repository_tracks_no_symbolic_link() -> None:
    """A link to a folder of one machine breaks every other clone."""
    tracked = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert [line for line in tracked.stdout.splitlines() if line.startswith("120000")] == []


def test_sbom_lists_every_package_of_the_lock_file_with_hashes() -> None:
    components = {(component["name"], component["version"]): component for component in sbom()["components"]}
    assert components.keys() == set(PINNED.findall(LOCK))
    assert sum(len(component["hashes"]) for component in components.values()) == LOCK.count("--hash=sha256:")


def test_sbom_references_are_unique() -> None:
    references = [component["bom-ref"] for component in sbom()["components"]]
    assert len(references) == len(set(references))


def test_sbom_contains_licences_of_installed_packages() -> None:
    licences = {
        component["name"]: component["licenses"][0]["license"]["name"]
        for component in sbom()["components"]
        if "licenses" in component
    }
    assert {"fastapi", "asyncpg", "uvicorn", "sqlalchemy"} <= licences.keys()
