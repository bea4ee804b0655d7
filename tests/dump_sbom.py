"""Prints what a release is made of, from requirements.lock, as CycloneDX 1.5: `make sbom`. No time and no serial number: the same lock
gives the same text."""

import json
import re
from importlib import metadata
from typing import Any

from app.db.migrations import ROOT

Json = dict[str, Any]
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*(?:\n    .*)*)", re.MULTILINE)
HASH = re.compile(r"sha256:([0-9a-f]{64})")
FREE = re.compile(r"^[\w .()+-]{1,60}$")  # the name of a licence; some packages put its whole text there


def sbom() -> Json:
    lock = (ROOT / "requirements.lock").read_text()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "longshore", "name": "longshore", "version": _own_version()}
        },
        "components": [_component(name, version, rest) for name, version, rest in LOCKED.findall(lock)],
    }


def _own_version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _component(name: str, version: str, rest: str) -> Json:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    made: Json = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    hashes = [{"alg": "SHA-256", "content": digest} for digest in HASH.findall(rest)]
    licence = _licence(name)
    return {**made, "hashes": hashes, **({"licenses": [{"license": {"name": licence}}]} if licence else {})}


def _licence(name: str) -> str | None:
    """As the installed package says; one for another platform is not here to ask."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    expressed, classified, free = (
        told.get_all(field) or [] for field in ("License-Expression", "Classifier", "License")
    )
    said = [*expressed, *(line.split(" :: ")[-1] for line in classified if line.startswith("License ::")), *free]
    return next((text for text in said if FREE.match(text)), None)


if __name__ == "__main__":
    print(json.dumps(sbom(), indent=2))
