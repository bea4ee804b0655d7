"""`make bench-profile`: where a server process spends its time, a flame graph by py-spy for each hot path."""

import asyncio
import subprocess
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench import postgres
from bench.install import HOME, own_folder, python_environment
from bench.load.order import Order
from bench.ours import Ours
from bench.report import RESULTS

PY_SPY = "py-spy==0.4.1"
PATHS = ("enqueue_1", "enqueue_1000", "claim_1_complete_1", "claim_100_settle_100")
SECONDS = 4.0


@dataclass
class Profiled(Ours):
    """Ours, recorded while the load runs; not while a drain is filled."""

    spy: Path = Path()
    picture: Path = Path()
    _recording: Process | None = field(default=None, init=False)

    async def _set_up(self, order: Order) -> None:
        await super()._set_up(order)
        assert self._brokers is not None
        options = [
            "--rate",
            "500",
            "--duration",
            str(round(order.seconds + order.warm_up)),
            "--output",
            str(self.picture),
        ]
        self._recording = await asyncio.create_subprocess_exec(
            str(self.spy),
            "record",
            "--pid",
            str(self._brokers.pids[0]),
            *options,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    async def recorded(self) -> None:
        assert self._recording is not None
        _, complaints = await self._recording.communicate()
        if self._recording.returncode != 0:
            raise SystemExit(
                f"py-spy could not record (it needs the right to trace processes): {complaints.decode().strip()}"
            )
        here = f"{HOME.parent}/"  # py-spy writes its own command line into the picture
        self.picture.write_text(self.picture.read_text().replace(here, "").replace(sys.executable, "python"))


async def main() -> None:
    spy = python_environment([PY_SPY]).parent / "py-spy"
    RESULTS.mkdir(exist_ok=True)
    with own_folder() as folder, postgres.own_postgres() as dsn:
        for path in PATHS:
            contender = Profiled("ours-1", spy=spy, picture=RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{path}.svg")
            async with postgres.own_database(dsn, "bench_profile") as own:
                try:
                    await contender.start(own, folder)
                    result = await contender.run(path, SECONDS)
                    await contender.recorded()
                finally:
                    await contender.stop()
            print(f"{path}: {result.rate:,.0f}/s while recorded, {contender.picture.name}")


if __name__ == "__main__":
    asyncio.run(main())
