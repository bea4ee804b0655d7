"""What every room stands on, passed as one thing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from app.db.clock import DatabaseClock
from app.db.config_versions import ConfigVersions
from app.db.lanes import JobIdGenerator
from app.db.notifier import Notifier
from app.db.pool import Database
from app.db.search_connections import SearchConnections
from app.db.server_checks import ServerChecks
from app.metrics import Metrics
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Infrastructure:
    settings: Settings
    metrics: Metrics
    db: Database
    reads: SearchConnections
    inspection: ServerChecks
    clock: DatabaseClock
    job_ids: JobIdGenerator
    wakeups: Notifier
    versions: ConfigVersions

    @property
    def now(self) -> Callable[[], datetime]:
        return self.clock.now

    @property
    def retention_now(self) -> Callable[[], datetime]:
        """Retention deletes rows that are old by this time, which follows a jump ahead of the database's clock only a day later."""
        return self.clock.retention.now
