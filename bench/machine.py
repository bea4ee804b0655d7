"""What the machine is, and what processes on it have used: CPU seconds and memory, as /proc tells."""

import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(*roots: int) -> float:
    """CPU seconds, user and system, of these processes and all below them; ended children count once their parent has awaited them."""
    return sum(_times(pid) for pid in tree(*roots)) / TICKS


def memory_of(*roots: int) -> int:
    """Resident bytes of these processes and all below them."""
    return sum(_resident(pid) for pid in tree(*roots))


def tree(*roots: int) -> set[int]:
    """These processes and all below them."""
    children = _children()
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _children() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields:
            below.setdefault(int(fields[1]), []).append(pid)
    return below


def _pids() -> Iterable[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _stat(pid: int) -> list[str]:
    """The fields from the third on: the second, the name, may hold blanks and brackets."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _times(pid: int) -> int:
    """Own time, and that of children which have ended and been awaited."""
    return sum(map(int, _stat(pid)[11:15]))


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0


class Others:
    """CPU that processes beside ours have used since it was made: a run is worth as much as the machine was quiet."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy(), cpu_of(os.getpid())

    def share(self) -> float:
        """Of all cores."""
        foreign = (_busy() - self._busy) - (cpu_of(os.getpid()) - self._own)
        return max(0.0, foreign / (time.monotonic() - self._began) / len(os.sched_getaffinity(0)))


def _busy() -> float:
    """CPU seconds of the whole machine but for idling, with what its host has taken away."""
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


def described() -> dict[str, str]:
    """Enough to judge the figures by; not whose machine it is."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * PAGE / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _first(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
