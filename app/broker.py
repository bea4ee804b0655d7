"""Every room, built on one floor and joined by what they tell each other; and the chores that keep the house."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.api_keys.authenticator import ApiKeyAuthenticator
from app.api_keys.service import ApiKeyService
from app.concurrency.group_scheduler import GroupScheduler
from app.concurrency.rule_changes import RuleChanges
from app.db import config_versions, server_checks
from app.db.clock import DatabaseClock
from app.db.config_versions import ConfigVersions, VersionHandler
from app.db.infrastructure import Infrastructure
from app.db.lanes import JobIdGenerator
from app.db.notifier import Notifier
from app.db.pool import Database
from app.db.search_connections import SearchConnections
from app.db.server_checks import ServerChecks
from app.dead_letters.service import DeadLetterService
from app.enqueue.parser import JobParser
from app.enqueue.service import EnqueueService
from app.explain.reasons import JobExplainer
from app.job_types.cache import JobTypeCache
from app.job_types.service import JobTypeService
from app.jobs.path_access import PathAccess
from app.jobs.reader import JobReader
from app.jobs.signals import Signals
from app.jobs.updater import JobUpdater
from app.leases import low_water_marks
from app.leases.claim import ClaimService
from app.leases.heartbeat import HeartbeatService
from app.leases.long_poll import LongPoll
from app.leases.settle import SettlementService
from app.maintenance import due_check
from app.maintenance.chores import Cleaner, JobScheduler, LeaseRescuer, Partitions, ReadyPoller, StartDeadlineEnforcer
from app.maintenance.dependency_resolver import DependencyResolver
from app.maintenance.due_check import DueCheck
from app.maintenance.services import PeriodicService, ServiceRunner
from app.matching.pollers import PollerRegistry
from app.matching.sync_match import SyncMatcher
from app.metrics import Metrics
from app.purging.purging import QueuePurger
from app.queues.cache import QueueCache
from app.queues.creator import QueueCreator
from app.queues.service import QueueService
from app.schedules.enqueuer import PeriodicEnqueuer
from app.schedules.service import ScheduleService
from app.settings import Settings
from app.stats.histograms import DurationHistogram
from app.stats.service import StatsService
from app.workers.poll_history import PollHistory
from app.workers.registry import WorkerRegistry


@dataclass(frozen=True, slots=True)
class Broker:
    floor: Infrastructure
    keyring: ApiKeyAuthenticator
    issuing: ApiKeyService
    borders: PathAccess
    queues: QueueCache
    configuring: QueueService
    signals: Signals
    intake: EnqueueService
    watching: JobReader
    waiting: PollerRegistry
    roster: WorkerRegistry
    asks: PollHistory
    turns: GroupScheduler
    sorting: RuleChanges
    settling: SettlementService
    handing: SyncMatcher
    taking: ClaimService
    reviving: DeadLetterService
    firing: PeriodicEnqueuer
    reckoning: StatsService
    rooms: tuple[object, ...]

    async def finish(self) -> None:
        """What callers have brought is stored, and what nobody is there to take goes back."""
        await asyncio.gather(self.intake.finish(), self.taking.finish(), self.settling.finish())
        await self.handing.run_once()

    def drain(self) -> None:
        """Parked polls and watchers are answered now; /readyz says no from here on."""
        self.waiting.drain()
        self.watching.drain()


def build_broker(settings: Settings, dsn: str) -> Broker:
    floor = _infrastructure(settings, dsn)
    queues, job_types, signals, times = QueueCache(floor), JobTypeCache(floor), Signals(floor.wakeups), DurationHistogram()
    waiting, roster, asks, turns = (
        PollerRegistry(floor.metrics),
        WorkerRegistry(floor),
        PollHistory(floor, queues),
        GroupScheduler(floor, queues, signals),
    )
    sorting = RuleChanges(floor, queues, signals, turns)
    watching = JobReader(floor, queues, signals)
    configuring = QueueService(floor)
    creator = QueueCreator(floor, queues)
    intake = EnqueueService(floor, queues, creator, JobParser(floor, queues, job_types), signals)
    settling = SettlementService(floor, queues, signals, times, turns)
    handing = SyncMatcher(floor, queues, waiting, settling)
    intake.offer = handing.offer
    reviving = DeadLetterService(floor, queues, creator, signals, watching)
    firing = PeriodicEnqueuer(floor, intake, watching)
    reckoning = StatsService(floor, queues, waiting, times)
    taking = ClaimService(floor, queues, signals, times)
    issuing = ApiKeyService(floor)
    rooms = (
        issuing,
        configuring,
        JobTypeService(floor),
        queues,
        intake,
        watching,
        JobUpdater(floor, queues, signals, watching),
        QueuePurger(floor, queues, signals, turns.look_at),
        roster,
        settling,
        LongPoll(floor, queues, waiting, settling, roster, asks, taking),
        HeartbeatService(floor, queues, settling, roster),
        reviving,
        firing,
        ScheduleService(floor, intake, firing),
        reckoning,
        JobExplainer(floor, queues, watching, asks, waiting),
    )
    return Broker(
        floor,
        ApiKeyAuthenticator(floor),
        issuing,
        PathAccess(floor, queues),
        queues,
        configuring,
        signals,
        intake,
        watching,
        waiting,
        roster,
        asks,
        turns,
        sorting,
        settling,
        handing,
        taking,
        reviving,
        firing,
        reckoning,
        rooms,
    )


def _infrastructure(settings: Settings, dsn: str) -> Infrastructure:
    metrics, clock = Metrics(), DatabaseClock()
    listen = settings.listen_url.get_secret_value() if settings.listen_url else dsn
    wakeups = Notifier(listen, metrics, enabled=settings.notify)
    db = Database(dsn, settings, metrics)
    return Infrastructure(
        settings,
        metrics,
        db,
        SearchConnections(db, settings),
        ServerChecks(db, settings, metrics),
        clock,
        JobIdGenerator(clock.now),
        wakeups,
        ConfigVersions(db, wakeups),
    )


def start_services(house: Broker, runner: ServiceRunner) -> None:
    """Whoever has work for a chore nudges it; the seconds are for what nobody has told us."""
    floor, settings = house.floor, house.floor.settings
    promotion, releasing = JobScheduler(floor, house.queues, house.signals), DependencyResolver(floor, house.queues, house.signals)
    expiry, lateness = LeaseRescuer(floor, house.settling), StartDeadlineEnforcer(floor, house.queues, house.signals)
    runner.start(PeriodicService("clock", lambda: floor.clock.refresh(floor.db), 1.0))
    runner.start(PeriodicService("inspection", floor.inspection.run_once, server_checks.SECONDS))
    look_at_versions = runner.start(PeriodicService("versions", floor.versions.keep_fresh, config_versions.CHECK_SECONDS))
    sweeps = {
        "turns": house.turns.run_once,
        "releasing": releasing.run_once,
        "promotion": promotion.run_once,
        "firing": house.firing.run_once,
        "expiry": expiry.run_once,
        "lateness": lateness.run_once,
    }
    nudges = {
        name: runner.start(PeriodicService(name, sweep, settings.sweep_seconds * due_check.REGULARLY)) for name, sweep in sweeps.items()
    }
    house.turns.nudge, house.signals.on_ended = nudges["turns"], nudges["releasing"]
    promotion.nudge, house.firing.nudge = nudges["promotion"], nudges["firing"]
    runner.start(PeriodicService("rounds", DueCheck(floor, expiry, promotion, house.firing, nudges).run_once, settings.sweep_seconds))
    house.sorting.nudge = runner.start(PeriodicService("sorting", house.sorting.run_once, settings.sweep_seconds))
    house.handing.nudge = runner.start(PeriodicService("hand-offs", house.handing.run_once, settings.sweep_seconds))
    look = runner.start(PeriodicService("look", ReadyPoller(floor, house.queues, house.waiting).run_once, settings.poll_seconds))
    runner.start(PeriodicService("floors", house.taking.floors.run_once, low_water_marks.SCAN_SECONDS))
    runner.start(PeriodicService("roster", house.roster.exchange, 1.0))
    runner.start(PeriodicService("key use", house.keyring.write_used, 5.0))
    runner.start(PeriodicService("asks", house.asks.write, 1.0))
    runner.start(PeriodicService("times", house.reckoning.write_times, 1.0))
    runner.start(PeriodicService("fold", house.reckoning.fold, 1.0, led=True))
    runner.start(PeriodicService("health", house.reckoning.watch_health, 5.0))
    runner.start(PeriodicService("partitions", Partitions(floor, house.queues).run_once, 60.0, led=True))
    runner.start(PeriodicService("retention", Cleaner(floor, house.reviving).run_once, 60.0, led=True))
    runner.start(PeriodicService("used queues", house.configuring.revive_used, 5.0, led=True))
    runner.start_task("wakeups", floor.wakeups.run)
    house.roster.on_directive = house.waiting.wake_worker

    def on_ready(queue_id: int | None, job_types: Iterable[str | None]) -> None:
        if queue_id in (None, config_versions.TOPIC):  # somebody has configured something, or we may have missed that somebody did
            floor.versions.outdated()
            look_at_versions()
        if queue_id == config_versions.TOPIC:
            return
        name = None if queue_id is None else house.queues.name_of_id(queue_id)
        if name is None:
            look()  # a queue that we have not heard of, or word that some words were missed
        else:
            house.waiting.wake(name, job_types)

    house.signals.on_ready = on_ready
    floor.versions.hear("policies", _looker(look))


def _looker(look: Callable[[], None]) -> VersionHandler:
    """Whatever was configured may have made jobs claimable: resumed, unlimited, raised."""

    async def hear() -> None:
        look()

    return hear
