"""Looks once a minute at what the server is set to and how it is kept: for /readyz, for the log, for /metrics."""

from app.db import session_settings
from app.db.durability import Facts, durability_failures, durability_warnings
from app.db.pool import Database
from app.log import log
from app.metrics import Metrics
from app.settings import Settings

SECONDS = 60.0
OWN_CONNECTIONS = 2  # of a process, besides its pool: the watchdog's and the wake-ups'

# `standbys` is NULL for a role that may not see them (pg_monitor may). Snapshots are counted in transactions: their times are hidden too.
_ASK = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('synchronous_standby_names') AS standby_names,
       (SELECT array_agg(current_setting(name) ORDER BY at) FROM unnest($1::text[]) WITH ORDINALITY AS needed (name, at)) AS session,
       current_setting('data_checksums') AS data_checksums,
       (SELECT CASE WHEN count(*) = count(sync_state) THEN count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) END
        FROM pg_stat_replication) AS standbys,
       (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore-watchdog') AS brokers,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) AS most_connections,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS frozen_age,
       (SELECT mxid_age(datminmxid) FROM pg_database WHERE datname = current_database()) AS multixact_age,
       (SELECT coalesce(max(age(xmin)), 0)
        FROM (SELECT backend_xmin FROM pg_stat_activity WHERE pid <> pg_backend_pid()
              UNION ALL SELECT xmin FROM pg_replication_slots
              UNION ALL SELECT catalog_xmin FROM pg_replication_slots
              UNION ALL SELECT transaction FROM pg_prepared_xacts) AS held (xmin)) AS snapshot_age
"""


class ServerChecks:
    def __init__(self, db: Database, settings: Settings, metrics: Metrics) -> None:
        self._db = db
        self._settings = settings
        self._metrics = metrics
        self._found: list[str] | None = None

    async def run_once(self) -> None:
        row = await self._db.row(_ASK, list(session_settings.NEEDED))
        assert row is not None, "a SELECT without FROM has a row"
        facts: Facts = dict(row)
        self._metrics.frozen_age.set(row["frozen_age"])
        self._metrics.multixact_age.set(row["multixact_age"])
        self._metrics.snapshot_age.set(row["snapshot_age"])
        lost = list(durability_failures(facts))
        connections = self._settings.pool_size + OWN_CONNECTIONS
        self._note(
            [*lost, *durability_warnings(facts, connections), *session_settings.missing_settings(row["session"])]
        )
        if lost and self._settings.require_durable:
            self._db.terminate()  # changed since they were opened; new ones are refused

    def _note(self, found: list[str]) -> None:
        if found and found != self._found:
            log.warning("database degraded", findings=found)
        self._found = found

    async def to_response(self) -> str:
        """For /readyz: degraded is not unready, as the operator may have chosen it."""
        if self._found is None:
            await self.run_once()
        long = self._db.long_statements()
        found = [*(self._found or ()), *([f"{long} statements have been running for long"] if long else ())]
        return f"degraded: {'; '.join(found)}" if found else "what is acknowledged is on disk"
