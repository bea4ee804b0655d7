"""A run from start to end; tests and the command line call `run`.

Its phases: quiet load -> faults, one after another -> drain -> read the final state -> check."""

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tests.chaos import final_state, history
from tests.chaos.checker import check
from tests.chaos.cluster import Cluster
from tests.chaos.facts import Facts, Fault
from tests.chaos.nemeses import FULL, conflict, enabled_nemeses
from tests.chaos.options import Options, from_json, to_json
from tests.chaos.progress import Progress
from tests.chaos.report import Report, report


def run(options: Options) -> Report:
    """Runs the harness.

    The report has all violations; the folder is kept on a violation or on request."""
    folder = Path(options.keep or tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    assert not any(folder.iterdir()), f"{folder} is not empty"
    folder.chmod(0o755)
    started = time.monotonic()
    (folder / "options.json").write_text(to_json(options))
    with running(options, folder) as cluster:
        (folder / "final.json").write_bytes(msgspec.json.encode(Run(cluster).execute()))
    summary = evaluate(folder, seconds=time.monotonic() - started)
    if summary.is_clean and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return summary


def evaluate(folder: Path, *, seconds: float = 0) -> Report:
    """Checks the files of a run and reports the violations."""
    faults = (folder / "faults.jsonl").read_bytes().splitlines() if (folder / "faults.jsonl").exists() else []
    facts = Facts(
        history.read(folder / "history"),
        [msgspec.json.decode(line, type=Fault) for line in faults],
        msgspec.json.decode((folder / "final.json").read_bytes(), type=final_state.FinalState),
        from_json((folder / "options.json").read_text()),
    )
    return report(facts, folder, check(facts), seconds=seconds)


@contextmanager
def running(options: Options, folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(options, folder, replicated="failover" in enabled_nemeses(options))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Run:
    """The phases of one run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.options = cluster.options
        self.rng = random.Random(f"{self.options.seed}/faults")
        self.faults: list[Fault] = []
        self.progress = Progress(self.options)

    def execute(self) -> final_state.FinalState:
        self.cluster.start_clients()
        self._pause(self.options.quiet)
        for names in self._plan_faults():
            self._inject(names)
            self._pause(self.options.gap_seconds * self.rng.uniform(0.5, 1.5))
        return self._drain()

    def _plan_faults(self) -> list[list[str]]:
        """Plans each nemesis once, in random order, then random ones; sometimes two at once."""
        names = enabled_nemeses(self.options)
        self.rng.shuffle(names)
        plan = [[name] for name in names[: self.options.faults]]
        while len(plan) < self.options.faults:
            first, *second = self.rng.sample(names, min(2, len(names)))
            both = self.rng.random() < self.options.together and not conflict(first, *second)
            plan.append([first, *second] if both else [first])
        return plan

    def _inject(self, names: list[str]) -> None:
        self.progress.show(f"fault {len(self.faults) + 1}/{self.options.faults} {'+'.join(names)}")
        began, affected = history.now(), set[int]()
        with ExitStack() as stack:
            for name in names:
                affected |= set(stack.enter_context(FULL[name](self.cluster, self.rng)))
            time.sleep(self.options.fault_seconds * self.rng.uniform(0.5, 1.5))
        self.faults.append(Fault("+".join(names), began, history.now(), sorted(affected)))
        with (self.cluster.folder / "faults.jsonl").open("ab") as log:
            log.write(msgspec.json.encode(self.faults[-1]) + b"\n")

    def _pause(self, seconds: float) -> None:
        self.progress.show("quiet")
        time.sleep(seconds)

    def _drain(self) -> final_state.FinalState:
        """Waits until the producers have ended, then until all jobs are finished.

        A slow machine may need more time: each finished job extends the deadline."""
        schedule_runs = final_state.pause_schedules(self.cluster)
        while any(producer.is_alive for producer in self.cluster.producers):
            self.progress.show("producers finish")
            time.sleep(0.1)
        self.cluster.stop_operators()
        left, until = final_state.count_unfinished_jobs(self.cluster), self._drain_deadline()
        while left and time.monotonic() < until:
            self.progress.show(f"drain: {left} jobs left")
            time.sleep(0.1)
            if (now_left := final_state.count_unfinished_jobs(self.cluster)) < left:
                left, until = now_left, self._drain_deadline()
        self.cluster.workers.finish()
        return final_state.read_final_state(self.cluster, schedule_runs, drained=left == 0)

    def _drain_deadline(self) -> float:
        """Returns the deadline for the next job to finish: the time of leases and attempts, and
        some more."""
        return time.monotonic() + self.options.lease * 5 + self.options.settling
