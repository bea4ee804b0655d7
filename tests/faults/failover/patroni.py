"""Three Patroni nodes and an etcd on this machine, as docs/operations/high-availability.md
describes them.

Needs `patroni` and `etcd` on the PATH.
"""

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import wait_until
from tests.faults.failover.server import Account, children_of, is_alive

NAMES = ("a", "b", "c")
PASSWORD = "patroni"
# The shortest times that Patroni allows: the time that a leader may be silent is the largest part
# of an outage.
DYNAMIC = {
    "ttl": 20,
    "loop_wait": 2,
    "retry_timeout": 5,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
    "postgresql": {
        "use_pg_rewind": True,
        "parameters": {"shared_buffers": "16MB", "max_connections": 60, "wal_log_hints": "on"},
    },
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is not on the PATH: apt-get install patroni etcd-server"
    return path


class Node:
    """A Patroni process and the Postgres that it manages."""

    def __init__(self, account: Account, name: str, etcd: int) -> None:
        self.name = name
        self.account = account
        self.folder = account.make_folder(account.folder / f"patroni-{name}")
        self.postgres, self._api = free_port(), free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self._api}", timeout=30)
        self._file = self.folder / "patroni.yml"
        self._file.write_text(json.dumps(self._config(etcd)))  # JSON is valid YAML
        account.take_ownership(self._file)
        self._process: subprocess.Popen[bytes] | None = None

    def _config(self, etcd: int) -> dict[str, Any]:
        accounts = {"superuser": "postgres", "replication": "replicator", "rewind": "rewinder"}
        return {
            "scope": "longshore",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self._api}", "connect_address": f"127.0.0.1:{self._api}"},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {"dcs": DYNAMIC, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"]},
            "postgresql": {
                "listen": f"127.0.0.1:{self.postgres}",
                "connect_address": f"127.0.0.1:{self.postgres}",
                "data_dir": str(self.folder / "data"),
                "bin_dir": str(self.account.binaries),
                "pgpass": str(self.folder / "pgpass"),
                "authentication": {role: {"username": name, "password": PASSWORD} for role, name in accounts.items()},
                "parameters": {"unix_socket_directories": str(self.folder)},
                "pg_hba": [
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication replicator 127.0.0.1/32 scram-sha-256",
                ],
            },
        }

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = self.account.start([program("patroni"), self._file], log)

    def status(self) -> dict[str, Any]:
        """The status; empty while the node does not answer."""
        with suppress(httpx.HTTPError):
            status: dict[str, Any] = self.http.get("/patroni").json()
            return status
        return {}

    def kill(self) -> None:
        """Kills Patroni, its Postgres and all child processes, like the loss of a machine."""
        assert self._process is not None
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        pids = [self._process.pid, postmaster, *children_of(postmaster)]
        for pid in pids:
            with suppress(ProcessLookupError):
                subprocess.run(["kill", "-9", str(pid)], check=False)
        self._process.wait(30)
        wait_until(lambda: not any(map(is_alive, pids)))

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
        self.http.close()


class Patroni:
    """A cluster of Patroni nodes."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def dsn(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.postgres}" for node in self.nodes)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?target_session_attrs=primary"

    def leader(self) -> Node | None:
        return next((node for node in self.nodes if node.status().get("role") in ("primary", "master")), None)

    def is_healthy(self, members: int) -> bool:
        """Whether one node leads, all others stream, and one of them is a synchronous standby."""
        states = [node.status() for node in self.nodes]
        streaming = sum(state.get("replication_state") == "streaming" for state in states)
        return streaming == members - 1 and any(state.get("sync_standby") for state in states)

    def switch_over(self) -> None:
        """Switches over, as an operator does before maintenance. Returns when another node leads."""
        before = wait_until(self.leader)
        response = before.http.post("/switchover", json={"leader": before.name})
        assert response.status_code == 200, response.text
        wait_until(lambda: self.leader() not in (None, before), 60)


@contextmanager
def start_patroni(account: Account) -> Iterator[Patroni]:
    port = free_port()
    etcd = start_etcd(account, port)
    nodes = [Node(account, name, port) for name in NAMES]
    cluster = Patroni(nodes)
    try:
        for node in nodes:
            node.start()
        wait_until(lambda: cluster.is_healthy(len(NAMES)), 180)
        yield cluster
    finally:
        for node in nodes:
            node.stop()
        etcd.terminate()
        etcd.wait(30)


def start_etcd(account: Account, port: int) -> "subprocess.Popen[bytes]":
    folder: Path = account.make_folder(account.folder / "etcd")
    address, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    urls = {"listen-client-urls": address, "advertise-client-urls": address, "listen-peer-urls": peers}
    options = {
        **urls,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "data-dir": str(folder),
    }
    with (account.folder / "etcd.log").open("ab") as log:
        return account.start([program("etcd"), *(f"--{name}={value}" for name, value in options.items())], log)
