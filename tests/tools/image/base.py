"""A substitute for the base image of the Dockerfile: Debian's own Python, installed by debootstrap.

The named image comes from a registry that is not always reachable. The substitute has the parts
that the Dockerfile uses: `pip`, and Python as `/usr/local/bin/python`."""

import json
import os
import shutil
import subprocess
from pathlib import Path

CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
PACKAGES = "ca-certificates,python3,python3-venv,python3-pip"


class Builder:
    """buildah with an image store of its own.

    The substitute has the name of a public image, so it must not stay on the machine."""

    def __init__(self, folder: Path) -> None:
        self._command = ["buildah", f"--root={folder / 'images'}", f"--runroot={folder / 'run'}"]

    def __call__(self, *arguments: str) -> str:
        return run(*self._command, *arguments)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def build_base(buildah: Builder, name: str, root: Path) -> None:
    """Builds the substitute and commits it as the image `name`."""
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", _release(), str(root), *_mirror())
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    shutil.copyfile(f"/{CERTIFICATES}", root / CERTIFICATES)  # this machine may use a private certificate authority
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(root), "/")
    for variable in _environment():
        buildah("config", "--env", variable, container)
    buildah("commit", "--quiet", "--rm", container, name)
    shutil.rmtree(root)


def _release() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME="))


def _mirror() -> list[str]:
    """Returns this machine's Debian mirror; an empty list means debootstrap's default."""
    sites = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").splitlines()
    return sites[:1]


def _environment() -> list[str]:
    """Returns variables that allow Debian's pip to install outside a virtual environment, and
    that name this machine's package index, if it has one."""
    index = os.environ.get("PIP_INDEX_URL") or _configured_index()
    indexes = [f"PIP_INDEX_URL={index}", f"UV_DEFAULT_INDEX={index}"] if index else []
    return ["PIP_BREAK_SYSTEM_PACKAGES=1", f"PIP_CERT=/{CERTIFICATES}", f"SSL_CERT_FILE=/{CERTIFICATES}", *indexes]


def _configured_index() -> str:
    result = subprocess.run(
        ["python3", "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip()


def image_config(buildah: Builder, name: str) -> dict[str, object]:
    """Returns the image's run configuration: user, folder, environment, commands, health check."""
    config: dict[str, object] = json.loads(buildah("inspect", "--type", "image", name))["Docker"]["config"]
    return config
