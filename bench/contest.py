"""Rounds in which every contender runs once, so that other load on the machine affects all of them alike."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench import goals, postgres
from bench.install import temporary_folder
from bench.report import Report, Row, row
from bench.result import Peer, Result

Show = Callable[[str], None]


class Contest:
    """Collects results by contender and path, and the reasons why some are missing.

    A failure of `ours` ends the run; a peer that fails is left out.
    """

    def __init__(
        self, dsn: str, *, ours: Sequence[Peer], peers: Sequence[Peer], only: Sequence[str], show: Show
    ) -> None:
        self._dsn = dsn
        self._ours = [peer for peer in ours if is_selected(peer, only)]
        self._peers = [peer for peer in peers if is_selected(peer, only)]
        self._only = only
        self._show = show
        self.results: dict[tuple[str, str], list[Result]] = {}
        self.missing: dict[str, str] = {}

    async def run(self, rounds: int, seconds: float) -> None:
        await self._install()
        for n in range(rounds):
            contenders = [*self._ours, *self._peers]
            first = n * len(contenders) // rounds  # each round begins with another contender
            for peer in contenders[first:] + contenders[:first]:
                await self._run_round(peer, seconds, f"round {n + 1}/{rounds}")

    def rows(self) -> list[Row]:
        known = {peer.name: peer for peer in (*self._ours, *self._peers)}
        return [row(known[name], path, results) for (name, path), results in self.results.items()]

    async def _install(self) -> None:
        for peer in [*self._ours, *self._peers]:
            self._show(f"installing {peer.name}")
            reason = await peer.install()
            if reason is not None:
                self._exclude(peer, reason)

    async def _run_round(self, peer: Peer, seconds: float, label: str) -> None:
        if peer.name in self.missing:
            return
        try:
            await self._run_paths(peer, seconds, label)
        except Exception as error:
            if peer in self._ours:
                raise
            self._exclude(peer, f"{type(error).__name__}: {error}")

    async def _run_paths(self, peer: Peer, seconds: float, label: str) -> None:
        async with postgres.temporary_database(self._dsn, re.sub(r"\W+", "_", f"bench_{peer.name}")) as dsn:
            with temporary_folder() as workdir:
                self._show(f"{label} · {peer.name} · starting")
                try:
                    await peer.start(dsn, workdir)
                    for path in selected_paths(peer, self._only):
                        await self._measure(peer, path, seconds, label)
                finally:
                    await peer.stop()

    async def _measure(self, peer: Peer, path: str, seconds: float, label: str) -> None:
        self._show(f"{label} · {peer.name} · {path} …")
        await postgres.checkpoint(self._dsn)
        result = await peer.run(path, seconds)
        self.results.setdefault((peer.name, path), []).append(result)
        self._show(
            f"{label} · {peer.name} · {path}: {result.jobs:,} jobs in {result.seconds:.1f} s, {result.rate:,.0f}/s\n"
        )

    def _exclude(self, peer: Peer, reason: str) -> None:
        self.missing[peer.name] = " ".join(reason.split())[:300]
        self._show(f"{peer.name} is left out: {reason}\n")
        if peer in self._ours:
            raise RuntimeError(f"{peer.name} cannot run: {reason}")


def build_report(contest: Contest, **facts: Any) -> Report:
    """Builds the report. `facts` are the fields that the contest does not know."""
    report = Report(rows=contest.rows(), missing=contest.missing, **facts)
    return msgspec.structs.replace(report, goals=goals.evaluate_goals(report))


def is_selected(peer: Peer, only: Sequence[str]) -> bool:
    return bool(selected_paths(peer, only))


def selected_paths(peer: Peer, only: Sequence[str]) -> tuple[str, ...]:
    """The paths of a peer that `only` selects: by a part of the peer's name, or by the whole name
    of a path.

    An empty `only` selects everything.
    """
    if not only or any(part.lower() in peer.name.lower() for part in only):
        return peer.paths
    return tuple(path for path in peer.paths if path in only)
