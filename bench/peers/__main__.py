"""Runs the peers alone, to try settings: `python -m bench.peers --only graphile --path drain --seconds 3`."""

import argparse
import asyncio

from bench import postgres
from bench.install import temporary_folder
from bench.peers import CONTENDERS
from bench.result import Peer, PeerPath


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the peer's name")
    parser.add_argument("--path", default="", help="a part of the path's name")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with postgres.temporary_postgres() as dsn:
        asyncio.run(_run_peers(dsn, options))


async def _run_peers(dsn: str, options: argparse.Namespace) -> None:
    for peer in CONTENDERS:
        if options.only.lower() in peer.name.lower():
            reason = await peer.install()
            if reason is None:
                await _run_peer(peer, dsn, options)
            else:
                print(f"{peer.name}: {reason}")


async def _run_peer(peer: Peer, dsn: str, options: argparse.Namespace) -> None:
    async with postgres.temporary_database(dsn, "peer") as database_dsn:
        with temporary_folder() as workdir:
            try:
                await peer.start(database_dsn, workdir)
                for path in peer.paths:
                    for _ in range(options.rounds if options.path in path else 0):
                        await _show(peer, path, options.seconds)
            finally:
                await peer.stop()


async def _show(peer: Peer, path: PeerPath, seconds: float) -> None:
    result = await peer.run(path, seconds)
    server, database, load = (
        1e6 * cpu / result.jobs for cpu in (result.cpu_server, result.cpu_database, result.cpu_load)
    )
    cost = f"µs per job: server {server:.0f}, database {database:.0f}, load {load:.0f}"
    print(
        f"{peer.name:16} {path:15} {result.rate:9,.0f} jobs/s in {result.seconds:4.1f} s; "
        f"{cost}; {result.settings} ({result.versions})",
        flush=True,
    )


main()
