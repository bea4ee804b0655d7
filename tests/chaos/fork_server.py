"""`python -m tests.chaos.fork_server`: imports everything once, and forks brokers and clients.

Starting Python and importing the broker takes seconds of CPU; a fork takes none. The children
are real processes: the harness kills, stops and terminates them like any other. They exit when
the fork server exits, which exits with the harness.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec

ROLES = ("broker", "producer", "worker", "operator")


class ForkRequest(msgspec.Struct):
    """A request: one line on stdin. The reply on stdout is the pid."""

    role: str
    args: list[str]
    log: str
    env: dict[str, str] = {}


class ChildProcess:
    """A process like a Popen, but a child of the fork server, which reaps it."""

    def __init__(self, pid: int, statuses: Path) -> None:
        self.pid = pid
        self._statuses = statuses

    @property
    def is_alive(self) -> bool:
        with suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            return True
        return False

    def send_signal(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, sign)

    def has_exited_within(self, seconds: float) -> bool:
        """Waits up to `seconds` for the process to exit; returns whether it has."""
        deadline = time.monotonic() + seconds
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.is_alive

    @property
    def exit_status(self) -> int | None:
        """Returns the exit status of a process that has exited, negative after a signal."""
        lines = [line.split() for line in self._statuses.read_text().splitlines()] if self._statuses.exists() else []
        return next((int(status) for pid, status in reversed(lines) if int(pid) == self.pid), None)

    def kill(self) -> None:
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGKILL)
        assert self.has_exited_within(30), f"process {self.pid} does not exit"


class ForkServer:
    def __init__(self, log: Path) -> None:
        self._statuses = log.with_suffix(".exits")
        with log.open("ab") as errors:
            command = [sys.executable, "-m", "tests.chaos.fork_server", str(self._statuses)]
            env = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._lock = threading.Lock()

    def fork(self, role: str, *args: str, log: Path, env: dict[str, str] | None = None) -> ChildProcess:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(ForkRequest(role, list(args), str(log), env or {})) + b"\n")
            self._process.stdin.flush()
            return ChildProcess(int(self._process.stdout.readline()), self._statuses)

    def close(self) -> None:
        self._process.communicate()


# The process of the fork server


def serve() -> None:
    from tests.chaos import broker, operator, producer, worker  # imported here: once, before the first fork

    _import_broker()
    signal.signal(signal.SIGCHLD, _reap_children)
    mains = {"broker": broker.main, "producer": producer.main, "worker": worker.main, "operator": operator.main}
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=ForkRequest)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _set_up_child(request, parent)
            mains[request.role](request.args)
            os._exit(0)
        print(pid, flush=True)


def _import_broker() -> None:
    """Imports the modules that `serve` imports when it is called."""
    import app.application
    import app.server.server
    import app.settings  # noqa: F401


def _reap_children(_signal: int, _frame: FrameType | None) -> None:
    """Writes the pid and the exit status of each child before its pid is free."""
    with suppress(ChildProcessError), Path(sys.argv[1]).open("a") as statuses:
        while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            status = child.si_status if child.si_code == os.CLD_EXITED else -child.si_status
            print(child.si_pid, status, file=statuses, flush=True)
            os.waitpid(child.si_pid, 0)


def _set_up_child(request: ForkRequest, parent: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(request.env)
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for old, new in ((null, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    threading.Thread(target=_exit_with_parent, args=(parent,), name="parent watch", daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    serve()
