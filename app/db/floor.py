"""What every room stands on, passed as one thing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from app.db.clock import DatabaseClock
from app.db.inspection import Inspection
from app.db.lanes import IdMint
from app.db.pool import Database
from app.db.reads import Reads
from app.db.versions import Versions
from app.db.wakeups import Wakeups
from app.metrics import Metrics
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Floor:
    settings: Settings
    metrics: Metrics
    db: Database
    reads: Reads
    inspection: Inspection
    clock: DatabaseClock
    mint: IdMint
    wakeups: Wakeups
    versions: Versions

    @property
    def now(self) -> Callable[[], datetime]:
        return self.clock.now

    @property
    def retention_now(self) -> Callable[[], datetime]:
        """Retention deletes rows that are old by this time, which follows a jump ahead of the database's clock only a day later."""
        return self.clock.retention.now
