"""`make bench-profile`: where a broker process spends its time, as a flame graph by py-spy for each hot path."""

import asyncio
import subprocess
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench import postgres
from bench.install import HOME, python_environment, temporary_folder
from bench.load.order import Order
from bench.ours import Longshore
from bench.report import RESULTS

PY_SPY = "py-spy==0.4.1"
PATHS = ("enqueue_1", "enqueue_1000", "claim_1_complete_1", "claim_100_settle_100")
SECONDS = 4.0


@dataclass
class ProfiledLongshore(Longshore):
    """Longshore, recorded while the load runs, and not while a drain is filled."""

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

    async def finish_recording(self) -> None:
        assert self._recording is not None
        _, errors = await self._recording.communicate()
        if self._recording.returncode != 0:
            raise SystemExit(
                f"py-spy could not record (it needs permission to trace processes): {errors.decode().strip()}"
            )
        root = f"{HOME.parent}/"  # py-spy writes its own command line into the picture
        self.picture.write_text(self.picture.read_text().replace(root, "").replace(sys.executable, "python"))


async def main() -> None:
    spy = python_environment([PY_SPY]).parent / "py-spy"
    RESULTS.mkdir(exist_ok=True)
    with temporary_folder() as folder, postgres.temporary_postgres() as dsn:
        for path in PATHS:
            contender = ProfiledLongshore(
                "ours-1", spy=spy, picture=RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{path}.svg"
            )
            async with postgres.temporary_database(dsn, "bench_profile") as database_dsn:
                try:
                    await contender.start(database_dsn, folder)
                    result = await contender.run(path, SECONDS)
                    await contender.finish_recording()
                finally:
                    await contender.stop()
            print(f"{path}: {result.rate:,.0f}/s while recorded, {contender.picture.name}")


if __name__ == "__main__":
    asyncio.run(main())
