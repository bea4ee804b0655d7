"""What a release is made of (E18): every package pinned by hash, from no named host, and told in an SBOM."""

import re

from app.db.migrations import ROOT
from tests.dump_sbom import sbom

LOCK = (ROOT / "requirements.lock").read_text()
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def test_every_line_of_the_lock_is_pinned_by_hash() -> None:
    packages = re.split(r"\n(?=[A-Za-z0-9])", LOCK.partition("\n#    make lock\n")[2])
    assert len(packages) > 30
    assert [
        package
        for package in packages
        if not re.match(r"[A-Za-z0-9._-]+==", package) or "--hash=sha256:" not in package
    ] == []


def test_the_lock_names_no_host() -> None:
    assert re.findall(r"https?://|--index-url|--find-links|@ file:", LOCK) == []


def test_the_sbom_tells_every_package_of_the_lock_with_its_hashes() -> None:
    components = {(part["name"], part["version"]): part for part in sbom()["components"]}
    assert components.keys() == set(PINNED.findall(LOCK))
    assert sum(len(part["hashes"]) for part in components.values()) == LOCK.count("--hash=sha256:")


def test_references_of_the_sbom_are_unique() -> None:
    references = [part["bom-ref"] for part in sbom()["components"]]
    assert len(references) == len(set(references))


def test_the_licence_of_what_is_installed_is_told() -> None:
    licences = {
        part["name"]: part["licenses"][0]["license"]["name"] for part in sbom()["components"] if "licenses" in part
    }
    assert {"fastapi", "asyncpg", "uvicorn", "sqlalchemy"} <= licences.keys()
