"""The dependencies that all services share, such as the settings, the database and its clock."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from app.db.clock import DatabaseClock
from app.db.config_versions import ConfigVersions
from app.db.lanes import JobIdGenerator
from app.db.notifier import Notifier
from app.db.pool import Database
from app.db.read_connections import ReadConnections
from app.db.server_checks import ServerChecks
from app.metrics import Metrics
from app.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Infrastructure:
    """The dependencies that all services share: settings, metrics, database connections and checks,
    clock, job ids, notifier and config versions. Built once per process."""

    settings: Settings
    metrics: Metrics
    db: Database
    read_connections: ReadConnections
    server_checks: ServerChecks
    clock: DatabaseClock
    now: Callable[[], datetime]  # `clock.now`
    # `clock.retention.now`: if the database's clock jumps ahead, this time follows a day later.
    retention_now: Callable[[], datetime]
    job_ids: JobIdGenerator
    notifier: Notifier
    config_versions: ConfigVersions
