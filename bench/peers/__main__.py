"""The peers alone, to try settings: `python -m bench.peers --only graphile --path drain --seconds 3`."""

import argparse
import asyncio

from bench import postgres
from bench.install import own_folder
from bench.peers import CONTENDERS
from bench.result import Peer, PeerPath


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the peer's name")
    parser.add_argument("--path", default="", help="a part of the path's name")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with postgres.own_postgres() as dsn:
        asyncio.run(_play_all(dsn, options))


async def _play_all(dsn: str, options: argparse.Namespace) -> None:
    for peer in CONTENDERS:
        if options.only.lower() in peer.name.lower():
            excuse = await peer.install()
            if excuse is None:
                await _play(peer, dsn, options)
            else:
                print(f"{peer.name}: {excuse}")


async def _play(peer: Peer, dsn: str, options: argparse.Namespace) -> None:
    async with postgres.own_database(dsn, "peer") as own:
        with own_folder() as workdir:
            try:
                await peer.start(own, workdir)
                for path in peer.paths:
                    for _ in range(options.rounds if options.path in path else 0):
                        await _show(peer, path, options.seconds)
            finally:
                await peer.stop()


async def _show(peer: Peer, path: PeerPath, seconds: float) -> None:
    done = await peer.run(path, seconds)
    server, database, load = (1e6 * cpu / done.jobs for cpu in (done.cpu_server, done.cpu_database, done.cpu_load))
    cost = f"µs per job: server {server:.0f}, database {database:.0f}, load {load:.0f}"
    print(
        f"{peer.name:16} {path:15} {done.rate:9,.0f} jobs/s in {done.seconds:4.1f} s; {cost}; {done.settings} ({done.versions})",
        flush=True,
    )


main()
