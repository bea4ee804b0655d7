"""Describes the machine, and reads from /proc what processes have used: CPU seconds and memory."""

import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(*roots: int) -> float:
    """CPU seconds, user and system, of these processes and their descendants.

    Ended children count once their parent has awaited them.
    """
    return sum(_times(pid) for pid in tree(*roots)) / TICKS


def memory_of(*roots: int) -> int:
    """Resident bytes of these processes and their descendants."""
    return sum(_resident(pid) for pid in tree(*roots))


def tree(*roots: int) -> set[int]:
    """These processes and their descendants."""
    children = _children()
    found: set[int] = set()
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, ())
    return found


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    return children


def _pids() -> Iterable[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _stat(pid: int) -> list[str]:
    """The fields from the third on. The second, the name, may contain spaces and brackets."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _times(pid: int) -> int:
    """The process's own time, and that of children that have ended and been awaited."""
    return sum(map(int, _stat(pid)[11:15]))


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0


class OtherProcesses:
    """CPU that other processes have used since this object was created: a run is reliable only on a quiet machine."""

    def __init__(self) -> None:
        self._began, self._busy, self._process_cpu = time.monotonic(), _busy(), cpu_of(os.getpid())

    def cpu_share(self) -> float:
        """Share of all cores."""
        others = (_busy() - self._busy) - (cpu_of(os.getpid()) - self._process_cpu)
        return max(0.0, others / (time.monotonic() - self._began) / len(os.sched_getaffinity(0)))


def _busy() -> float:
    """CPU seconds of the whole machine except idle time, including those that its host has stolen."""
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


def describe() -> dict[str, str]:
    """Enough to judge the figures, without identifying the machine."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * PAGE / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _first_value(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
