"""Prints the components of a release, from requirements.lock, as CycloneDX 1.5: `make sbom`.

The output has no time and no serial number: the same lock file gives the same text."""

import json
import re
from importlib import metadata
from typing import Any

from app import RELEASE
from app.db.migrations import ROOT

Json = dict[str, Any]
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*(?:\n    .*)*)", re.MULTILINE)
HASH = re.compile(r"sha256:([0-9a-f]{64})")
LICENCE_NAME = re.compile(r"^[\w .()+-]{1,60}$")  # some packages put the whole text of the licence there


def sbom() -> Json:
    lock = (ROOT / "requirements.lock").read_text()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "longshore", "name": "longshore", "version": RELEASE}
        },
        "components": [_component(name, version, options) for name, version, options in LOCKED.findall(lock)],
    }


def _component(name: str, version: str, options: str) -> Json:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    component: Json = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    hashes = [{"alg": "SHA-256", "content": digest} for digest in HASH.findall(options)]
    licence = _licence(name)
    return {**component, "hashes": hashes, **({"licenses": [{"license": {"name": licence}}]} if licence else {})}


def _licence(name: str) -> str | None:
    """Reads the licence from the installed package; None for packages of other platforms."""
    try:
        fields = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    expressions, classifiers, texts = (
        fields.get_all(field) or [] for field in ("License-Expression", "Classifier", "License")
    )
    licences = [
        *expressions,
        *(line.split(" :: ")[-1] for line in classifiers if line.startswith("License ::")),
        *texts,
    ]
    return next((text for text in licences if LICENCE_NAME.match(text)), None)


if __name__ == "__main__":
    print(json.dumps(sbom(), indent=2))
