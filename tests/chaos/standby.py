"""A Postgres with a synchronous standby that is promoted when the primary is killed."""

import asyncio
import subprocess
import tempfile
import time
from pathlib import Path

import asyncpg

from tests.chaos.database import OPTIONS, Postgres
from tests.faults.failover.server import PORT, Account, Server

DURABLE = OPTIONS | {"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB", "wal_keep_size": "1GB"}


class ReplicatedPostgres(Postgres):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-pg-")
        self._account = Account(Path(self._folder.name))
        self._primary = Server(self._account, "p", self._account.make_folder(self._account.folder / "first"))
        self._standby: Server | None = None
        self.dsn = self._primary.dsn

    @property
    def _data(self) -> Path:
        return self._primary.data

    @property
    def _logs(self) -> Path:
        return self._account.folder

    def start(self) -> None:
        self._primary.create()
        self._primary.start(DURABLE)

    def restart(self) -> None:
        self._primary.kill()
        self._primary.start()

    def _end(self) -> None:
        for server in filter(None, (self._primary, self._standby)):
            server.kill()
        self._folder.cleanup()

    def ensure_standby(self) -> None:
        """Starts a standby if there is none. Returns when every commit waits for it."""
        if self._standby is None:
            self._standby = Server(self._account, "p")
            asyncio.run(self._copy_to(self._standby))
            self._standby.create_signal_file("standby.signal")
            link = f"host={self._primary.sockets} port={PORT} user=postgres application_name=standby"
            self._standby.start(DURABLE | {"primary_conninfo": link, "wal_retrieve_retry_interval": "100ms"})
        self._set_synchronous_standby("standby")
        while not self.rows("SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'"):
            time.sleep(0.05)

    def promote_standby(self) -> None:
        """Promotes the standby. Its commits wait for no standby until it has one itself."""
        assert self._standby is not None
        self._primary.kill()
        self._primary, self._standby = self._standby, None
        self.dsn = self._primary.dsn
        self._set_synchronous_standby("")
        assert self.value("SELECT pg_promote()")

    def kill(self) -> None:
        self._primary.kill()

    def _set_synchronous_standby(self, name: str) -> None:
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.execute("SELECT pg_reload_conf()")

    async def _copy_to(self, copy: Server) -> None:
        """Copies the primary while it serves, as an online backup: the backup label says where
        replay starts."""
        connection = await asyncpg.connect(self.dsn)
        await connection.execute("SELECT pg_backup_start('chaos', true)")
        # Files that vanish during the copy are no loss: the WAL has their changes.
        subprocess.run(["cp", "-a", self._primary.data, copy.data], check=False, stderr=subprocess.DEVNULL)  # noqa: ASYNC221
        label = await connection.fetchval("SELECT labelfile FROM pg_backup_stop()")
        await connection.close()
        (copy.data / "backup_label").write_text(label)
        self._account.take_ownership(copy.data / "backup_label")
