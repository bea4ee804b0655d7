"""Three Patroni nodes and an etcd on this machine, as docs/operations/high-availability.md describes them. Needs `patroni` and `etcd` on the PATH."""

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
from tests.failover.server import Account, is_alive, children_of

NAMES = ("a", "b", "c")
PASSWORD = "patroni"
# The shortest that Patroni allows: how long a leader may be silent is the largest part of an outage.
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
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not on the PATH: apt-get install patroni etcd-server"
    return found


class Node:
    """A Patroni, and the Postgres that it keeps."""

    def __init__(self, account: Account, name: str, etcd: int) -> None:
        self.name = name
        self.account = account
        self.folder = account.make_folder(account.folder / f"patroni-{name}")
        self.postgres, self._api = free_port(), free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self._api}", timeout=30)
        self._file = self.folder / "patroni.yml"
        self._file.write_text(json.dumps(self._config(etcd)))  # JSON is YAML too
        account.own(self._file)
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
        """Empty while it does not answer."""
        with suppress(httpx.HTTPError):
            told: dict[str, Any] = self.http.get("/patroni").json()
            return told
        return {}

    def kill(self) -> None:
        """As a machine that is gone: Patroni, its Postgres, and what that has started."""
        assert self._process is not None
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        victims = [self._process.pid, postmaster, *children_of(postmaster)]
        for victim in victims:
            with suppress(ProcessLookupError):
                subprocess.run(["kill", "-9", str(victim)], check=False)
        self._process.wait(30)
        wait_until(lambda: not any(map(is_alive, victims)))

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
        self.http.close()


class Patroni:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def dsn(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.postgres}" for node in self.nodes)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?target_session_attrs=primary"

    def leader(self) -> Node | None:
        return next((node for node in self.nodes if node.status().get("role") in ("primary", "master")), None)

    def is_healthy(self, members: int) -> bool:
        """One leads, all others stream, and one of them has the leader's every commit."""
        states = [node.status() for node in self.nodes]
        streaming = sum(state.get("replication_state") == "streaming" for state in states)
        return streaming == members - 1 and any(state.get("sync_standby") for state in states)

    def switch_over(self) -> None:
        """As an operator does before maintenance. Returns when another one leads."""
        before = wait_until(self.leader)
        answer = before.http.post("/switchover", json={"leader": before.name})
        assert answer.status_code == 200, answer.text
        wait_until(lambda: self.leader() not in (None, before), 60)


@contextmanager
def start_patroni(account: Account) -> Iterator[Patroni]:
    port = free_port()
    etcd = start_etcd(account, port)
    nodes = [Node(account, name, port) for name in NAMES]
    made = Patroni(nodes)
    try:
        for node in nodes:
            node.start()
        wait_until(lambda: made.is_healthy(len(NAMES)), 180)
        yield made
    finally:
        for node in nodes:
            node.stop()
        etcd.terminate()
        etcd.wait(30)


def start_etcd(account: Account, port: int) -> "subprocess.Popen[bytes]":
    folder: Path = account.make_folder(account.folder / "etcd")
    address, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    where = {"listen-client-urls": address, "advertise-client-urls": address, "listen-peer-urls": peers}
    named = {
        **where,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "data-dir": str(folder),
    }
    with (account.folder / "etcd.log").open("ab") as log:
        return account.start([program("etcd"), *(f"--{name}={value}" for name, value in named.items())], log)
