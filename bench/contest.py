"""The contest: rounds in which every contender has its turn, so that whatever else the machine does meets them all alike."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench import goals, postgres
from bench.install import own_folder
from bench.report import Report, Row, row
from bench.result import Peer, Result

Show = Callable[[str], None]


class Contest:
    """Collects results by contender and path, and why some are missing. What is `ours` may not fail; a peer may."""

    def __init__(
        self, dsn: str, *, ours: Sequence[Peer], peers: Sequence[Peer], only: Sequence[str], show: Show
    ) -> None:
        self._dsn = dsn
        self._ours = [peer for peer in ours if wanted(peer, only)]
        self._peers = [peer for peer in peers if wanted(peer, only)]
        self._only = only
        self._show = show
        self.results: dict[tuple[str, str], list[Result]] = {}
        self.missing: dict[str, str] = {}

    async def run(self, rounds: int, seconds: float) -> None:
        await self._install()
        for n in range(rounds):
            everybody = [*self._ours, *self._peers]
            first = n * len(everybody) // rounds  # each round begins with another one
            for peer in everybody[first:] + everybody[:first]:
                await self._turn(peer, seconds, f"round {n + 1}/{rounds}")

    def rows(self) -> list[Row]:
        known = {peer.name: peer for peer in (*self._ours, *self._peers)}
        return [row(known[name], path, results) for (name, path), results in self.results.items()]

    async def _install(self) -> None:
        for peer in [*self._ours, *self._peers]:
            self._show(f"installing {peer.name}")
            why = await peer.install()
            if why is not None:
                self._leave_out(peer, why)

    async def _turn(self, peer: Peer, seconds: float, when: str) -> None:
        if peer.name in self.missing:
            return
        try:
            await self._play(peer, seconds, when)
        except Exception as error:
            if peer in self._ours:
                raise
            self._leave_out(peer, f"{type(error).__name__}: {error}")

    async def _play(self, peer: Peer, seconds: float, when: str) -> None:
        async with postgres.own_database(self._dsn, re.sub(r"\W+", "_", f"bench_{peer.name}")) as dsn:
            with own_folder() as workdir:
                self._show(f"{when} · {peer.name} · starting")
                try:
                    await peer.start(dsn, workdir)
                    for path in paths(peer, self._only):
                        await self._measure(peer, path, seconds, when)
                finally:
                    await peer.stop()

    async def _measure(self, peer: Peer, path: str, seconds: float, when: str) -> None:
        self._show(f"{when} · {peer.name} · {path} …")
        await postgres.calm(self._dsn)
        result = await peer.run(path, seconds)
        self.results.setdefault((peer.name, path), []).append(result)
        self._show(
            f"{when} · {peer.name} · {path}: {result.jobs:,} jobs in {result.seconds:.1f} s, {result.rate:,.0f}/s\n"
        )

    def _leave_out(self, peer: Peer, why: str) -> None:
        self.missing[peer.name] = " ".join(why.split())[:300]
        self._show(f"{peer.name} is left out: {why}\n")
        if peer in self._ours:
            raise RuntimeError(f"{peer.name} cannot run: {why}")


def reported(contest: Contest, **facts: Any) -> Report:
    """`facts` are the fields of a report that a contest does not know."""
    report = Report(rows=contest.rows(), missing=contest.missing, **facts)
    return msgspec.structs.replace(report, goals=goals.reckoned(report))


def wanted(peer: Peer, only: Sequence[str]) -> bool:
    return bool(paths(peer, only))


def paths(peer: Peer, only: Sequence[str]) -> tuple[str, ...]:
    """`only` has parts of contenders' names, or whole paths; nothing means everything."""
    if not only or any(part.lower() in peer.name.lower() for part in only):
        return peer.paths
    return tuple(path for path in peer.paths if path in only)
