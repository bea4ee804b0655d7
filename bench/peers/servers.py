"""The brokers that do not use Postgres: durable, in a folder of their own, on a free local port.

They end with the benchmark.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.db.embedded.processes import die_with_parent
from bench.machine import tree
from bench.peers import tools
from bench.peers.versions import NATS_SERVER

TIMEOUT_SECONDS = 60.0
# not the script in sbin, which changes the user
RABBITMQ_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

NATS_CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""


@dataclass(frozen=True, slots=True)
class Launch:
    command: list[str]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """How to launch a broker, and its Debian package (None: it is in the benchmark's own environment)."""

    launch: Callable[[Path, int], Launch]
    package: str | None

    def version(self) -> str:
        if self.package is None:
            return f"nats-server {NATS_SERVER}"
        status = subprocess.run(
            ["dpkg-query", "-W", "-f=${Version}", self.package], capture_output=True, text=True, check=True
        )
        return f"{self.package} {status.stdout}"


class Server:
    """One running broker."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts the broker and waits until it accepts connections."""
        launch = self._kind.launch(self._folder, self.port)
        self._process = self._spawn(launch)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await _accepts(self.port):
                if self._process.poll() is not None:
                    raise RuntimeError(f"{launch.command[0]} ended: {self._log.read_text()[-2000:]}")
                await asyncio.sleep(0.05)

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                launch.command,
                cwd=self._folder,
                env=os.environ | launch.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

    async def stop(self) -> None:
        """Ends the whole process tree: RabbitMQ's shell script waits for its Erlang, which must not be left behind."""
        if self._process is None:
            return
        process, self._process = self._process, None
        descendants = tree(process.pid)
        process.terminate()
        try:
            await asyncio.wait_for(asyncio.to_thread(process.wait), TIMEOUT_SECONDS)
        finally:
            for pid in descendants:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _end_epmd(self._folder)


async def _accepts(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _redis(folder: Path, port: int) -> Launch:
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction"]
    return Launch(["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), *durable], {})


def _beanstalkd(folder: Path, port: int) -> Launch:
    return Launch(["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f", "0"], {})


def _nats(folder: Path, port: int) -> Launch:
    config = folder / "nats.conf"
    config.write_text(NATS_CONFIG.format(port=port, folder=folder))
    return Launch([str(tools.nats_server()), "-c", str(config)], {})


def _rabbitmq(folder: Path, port: int) -> Launch:
    epmd = free_port()
    (folder / "epmd.port").write_text(str(epmd))
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.local = 127.0.0.1:{port}\n")
    return Launch(
        [str(RABBITMQ_SCRIPT)],
        {
            "HOME": str(folder),  # for the Erlang cookie
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        },
    )


def _end_epmd(folder: Path) -> None:
    """Ends Erlang's port mapper, which runs as a daemon. Its port is our own, so no other one is ended."""
    port = folder / "epmd.port"
    if port.exists() and shutil.which("epmd"):
        subprocess.run(["epmd", "-port", port.read_text(), "-kill"], capture_output=True, check=False)


REDIS = Kind(_redis, "redis-server")
BEANSTALKD = Kind(_beanstalkd, "beanstalkd")
NATS = Kind(_nats, None)
RABBITMQ = Kind(_rabbitmq, "rabbitmq-server")
