"""Checks the server's settings and the age of its data once a minute, for /readyz, the log and
/metrics."""

from app.db import session_settings
from app.db.durability import Facts, durability_failures, durability_warnings
from app.db.pool import LONG_SECONDS, Database
from app.log import log
from app.metrics import Metrics
from app.periodic_service import PeriodicService
from app.settings import Settings

SECONDS = 60.0
OTHER_CONNECTIONS = 2  # of a process, besides its pool: those of the watchdog and of the notifier

# `standbys` is NULL if the role may not see them (pg_monitor may). The age of snapshots is measured
# in transactions, because such a role cannot see their times either.
_FACTS = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS standby_names,
       (SELECT array_agg(current_setting(name) ORDER BY position)
        FROM unnest($1::text[]) WITH ORDINALITY AS needed (name, position)) AS session,
       current_setting('data_checksums') AS data_checksums,
       (SELECT CASE WHEN count(*) = count(sync_state) THEN count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) END
        FROM pg_stat_replication) AS standbys,
       (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore-watchdog') AS brokers,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) AS connection_limit,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS frozen_age,
       (SELECT mxid_age(datminmxid) FROM pg_database WHERE datname = current_database()) AS multixact_age,
       (SELECT coalesce(max(age(xmin)), 0)
        FROM (SELECT backend_xmin FROM pg_stat_activity WHERE pid <> pg_backend_pid()
              UNION ALL SELECT xmin FROM pg_replication_slots
              UNION ALL SELECT catalog_xmin FROM pg_replication_slots
              UNION ALL SELECT transaction FROM pg_prepared_xacts) AS held (xmin)) AS snapshot_age
"""


class ServerChecks(PeriodicService):
    """Keeps the findings of the last run."""

    def __init__(self, db: Database, settings: Settings, metrics: Metrics) -> None:
        super().__init__()
        self._db = db
        self._settings = settings
        self._metrics = metrics
        self._findings: list[str] | None = None

    async def run_once(self) -> None:
        row = await self._db.row(_FACTS, list(session_settings.NEEDED))
        assert row is not None, "a SELECT without FROM has a row"
        facts: Facts = dict(row)
        self._metrics.frozen_age.set(row["frozen_age"])
        self._metrics.multixact_age.set(row["multixact_age"])
        self._metrics.snapshot_age.set(row["snapshot_age"])
        failures = list(durability_failures(facts))
        connections = self._settings.pool_size + OTHER_CONNECTIONS
        self._record(
            [*failures, *durability_warnings(facts, connections), *session_settings.missing_settings(row["session"])]
        )
        if failures and self._settings.require_durable:
            # The server changed after they were opened; new connections are refused.
            self._db.terminate()

    def _record(self, findings: list[str]) -> None:
        if findings and findings != self._findings:
            log.warning("database degraded", findings=findings)
        self._findings = findings

    async def to_response(self) -> str:
        """The text of /readyz. A degraded server does not make the broker unready, because an
        operator may have chosen it."""
        if self._findings is None:
            await self.run_once()
        findings = list(self._findings or ())
        if long_statements := self._db.long_statements():
            findings.append(f"{long_statements} statements have been running for more than {LONG_SECONDS:g} seconds")
        return f"degraded: {'; '.join(findings)}" if findings else "acknowledged writes are on disk"
