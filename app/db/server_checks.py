"""Checks the database server once a minute: its settings, and the age of its oldest transaction ids
and snapshots. Reports problems in /readyz and in the log, and ages in /metrics."""

from app.db import session_settings
from app.db.durability import DURABILITY_COLUMNS, ServerRow, durability_failures, durability_warnings
from app.db.pool import LONG_STATEMENT_SECONDS, Database
from app.log import log
from app.metrics import Metrics
from app.periodic_service import PeriodicService
from app.settings import Settings

CHECK_SECONDS = 60.0
OTHER_CONNECTIONS = 2  # per process, besides the pool: those of the watchdog and the notifier

# Only a role with pg_monitor can see the standbys; for other roles `standbys` is NULL. They cannot
# see the times of snapshots either, so the age of a snapshot is measured in transactions.
_READ_SERVER = f"""
SELECT {DURABILITY_COLUMNS},
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
"""  # noqa: S608 - it contains only a constant


class ServerChecks(PeriodicService):
    """Checks the settings and the oldest transactions of the server. Keeps the last results."""

    def __init__(self, db: Database, settings: Settings, metrics: Metrics) -> None:
        super().__init__()
        self._db = db
        self._settings = settings
        self._metrics = metrics
        self._reasons: list[str] | None = None

    async def run_once(self) -> None:
        row = await self._db.row(_READ_SERVER, list(session_settings.NEEDED))
        assert row is not None, "a SELECT without FROM has a row"
        self._metrics.frozen_age.set(row["frozen_age"])
        self._metrics.multixact_age.set(row["multixact_age"])
        self._metrics.snapshot_age.set(row["snapshot_age"])
        server: ServerRow = dict(row)
        failures = list(durability_failures(server))
        warnings = durability_warnings(server, self._settings.pool_size + OTHER_CONNECTIONS)
        self._record([*failures, *warnings, *session_settings.missing_settings(row["session"])])
        if failures and self._settings.require_durable:
            # These connections were opened before the server's settings changed. PrimaryConnector
            # opens no new connections to a server that is not durable.
            self._db.terminate()

    def _record(self, reasons: list[str]) -> None:
        """Stores the reasons why the server is degraded, if there are any. Logs the reasons if they
        differ from those of the last run."""
        if reasons and reasons != self._reasons:
            log.warning("database degraded", reasons=reasons)
        self._reasons = reasons

    async def to_response(self) -> str:
        """Returns the text for /readyz. A degraded server does not make the broker unready, because
        an operator may have chosen its settings."""
        if self._reasons is None:
            await self.run_once()
        reasons = list(self._reasons or ())
        if long_statements := self._db.long_statements():
            reasons.append(
                f"{long_statements} statements have been running for more than {LONG_STATEMENT_SECONDS:g} seconds"
            )
        return f"degraded: {'; '.join(reasons)}" if reasons else "the settings keep acknowledged writes"
