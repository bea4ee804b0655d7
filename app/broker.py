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
from app.leases.duration_histogram import DurationHistogram
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
from app.stats.service import StatsService
from app.workers.poll_history import PollHistory
from app.workers.registry import WorkerRegistry


@dataclass(frozen=True, slots=True)
class Broker:
    infra: Infrastructure
    authenticator: ApiKeyAuthenticator
    api_keys: ApiKeyService
    path_access: PathAccess
    queues: QueueCache
    queue_service: QueueService
    signals: Signals
    enqueuer: EnqueueService
    reader: JobReader
    waiting: PollerRegistry
    workers: WorkerRegistry
    poll_history: PollHistory
    group_scheduler: GroupScheduler
    rule_changes: RuleChanges
    settlements: SettlementService
    matcher: SyncMatcher
    claims: ClaimService
    dead_letters: DeadLetterService
    periodic_enqueuer: PeriodicEnqueuer
    stats: StatsService
    rooms: tuple[object, ...]

    async def finish(self) -> None:
        """What callers have brought is stored, and what nobody is there to take goes back."""
        await asyncio.gather(self.enqueuer.finish(), self.claims.finish(), self.settlements.finish())
        await self.matcher.run_once()

    def drain(self) -> None:
        """Parked polls and watchers are answered now; /readyz says no from here on."""
        self.waiting.drain()
        self.reader.drain()


def build_broker(settings: Settings, dsn: str) -> Broker:
    infra = _infrastructure(settings, dsn)
    queues, job_types, signals, times = (
        QueueCache(infra),
        JobTypeCache(infra),
        Signals(infra.wakeups),
        DurationHistogram(),
    )
    waiting, workers, poll_history, group_scheduler = (
        PollerRegistry(infra.metrics),
        WorkerRegistry(infra),
        PollHistory(infra, queues),
        GroupScheduler(infra, queues, signals),
    )
    rule_changes = RuleChanges(infra, queues, signals, group_scheduler)
    reader = JobReader(infra, queues, signals)
    queue_service = QueueService(infra)
    creator = QueueCreator(infra, queues)
    enqueuer = EnqueueService(infra, queues, creator, JobParser(infra, queues, job_types), signals)
    settlements = SettlementService(infra, queues, signals, times, group_scheduler)
    matcher = SyncMatcher(infra, queues, waiting, settlements)
    enqueuer.offer = matcher.offer
    dead_letters = DeadLetterService(infra, queues, creator, signals, reader)
    periodic_enqueuer = PeriodicEnqueuer(infra, enqueuer, reader)
    stats = StatsService(infra, queues, waiting, times)
    claims = ClaimService(infra, queues, signals, times)
    api_keys = ApiKeyService(infra)
    rooms = (
        api_keys,
        queue_service,
        JobTypeService(infra),
        queues,
        enqueuer,
        reader,
        JobUpdater(infra, queues, signals, reader),
        QueuePurger(infra, queues, signals, group_scheduler.rescan),
        workers,
        settlements,
        LongPoll(infra, queues, waiting, settlements, workers, poll_history, claims),
        HeartbeatService(infra, queues, settlements, workers),
        dead_letters,
        periodic_enqueuer,
        ScheduleService(infra, enqueuer, periodic_enqueuer),
        stats,
        JobExplainer(infra, queues, reader, poll_history, waiting),
    )
    return Broker(
        infra,
        ApiKeyAuthenticator(infra),
        api_keys,
        PathAccess(infra, queues),
        queues,
        queue_service,
        signals,
        enqueuer,
        reader,
        waiting,
        workers,
        poll_history,
        group_scheduler,
        rule_changes,
        settlements,
        matcher,
        claims,
        dead_letters,
        periodic_enqueuer,
        stats,
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


def start_services(broker: Broker, runner: ServiceRunner) -> None:
    """Whoever has work for a chore nudges it; the seconds are for what nobody has told us."""
    infra, settings = broker.infra, broker.infra.settings
    promotion, releasing = (
        JobScheduler(infra, broker.queues, broker.signals),
        DependencyResolver(infra, broker.queues, broker.signals),
    )
    expiry, lateness = (
        LeaseRescuer(infra, broker.settlements),
        StartDeadlineEnforcer(infra, broker.queues, broker.signals),
    )
    runner.start(PeriodicService("clock", lambda: infra.clock.refresh(infra.db), 1.0))
    runner.start(PeriodicService("inspection", infra.inspection.run_once, server_checks.SECONDS))
    look_at_versions = runner.start(
        PeriodicService("versions", infra.versions.keep_fresh, config_versions.CHECK_SECONDS)
    )
    sweeps = {
        "turns": broker.group_scheduler.run_once,
        "releasing": releasing.run_once,
        "promotion": promotion.run_once,
        "firing": broker.periodic_enqueuer.run_once,
        "expiry": expiry.run_once,
        "lateness": lateness.run_once,
    }
    wakes = {
        name: runner.start(PeriodicService(name, sweep, settings.sweep_seconds * due_check.REGULARLY))
        for name, sweep in sweeps.items()
    }
    broker.group_scheduler.wake, broker.signals.on_ended = wakes["turns"], wakes["releasing"]
    promotion.wake, broker.periodic_enqueuer.wake = wakes["promotion"], wakes["firing"]
    runner.start(
        PeriodicService(
            "rounds",
            DueCheck(infra, expiry, promotion, broker.periodic_enqueuer, wakes).run_once,
            settings.sweep_seconds,
        )
    )
    broker.rule_changes.wake = runner.start(
        PeriodicService("sorting", broker.rule_changes.run_once, settings.sweep_seconds)
    )
    broker.matcher.wake = runner.start(PeriodicService("hand-offs", broker.matcher.run_once, settings.sweep_seconds))
    look = runner.start(
        PeriodicService("look", ReadyPoller(infra, broker.queues, broker.waiting).run_once, settings.poll_seconds)
    )
    runner.start(PeriodicService("floors", broker.claims.floors.run_once, low_water_marks.SCAN_SECONDS))
    runner.start(PeriodicService("roster", broker.workers.sync, 1.0))
    runner.start(PeriodicService("key use", broker.authenticator.write_last_used, 5.0))
    runner.start(PeriodicService("asks", broker.poll_history.write, 1.0))
    runner.start(PeriodicService("times", broker.stats.write_durations, 1.0))
    runner.start(PeriodicService("fold", broker.stats.aggregate, 1.0, leader_only=True))
    runner.start(PeriodicService("health", broker.stats.watch_health, 5.0))
    runner.start(PeriodicService("partitions", Partitions(infra, broker.queues).run_once, 60.0, leader_only=True))
    runner.start(PeriodicService("retention", Cleaner(infra, broker.dead_letters).run_once, 60.0, leader_only=True))
    runner.start(PeriodicService("used queues", broker.queue_service.revive_used, 5.0, leader_only=True))
    runner.start_task("wakeups", infra.wakeups.run)
    broker.workers.on_directive = broker.waiting.wake_worker

    def on_ready(queue_id: int | None, job_types: Iterable[str | None]) -> None:
        if queue_id in (
            None,
            config_versions.TOPIC,
        ):  # somebody has configured something, or we may have missed that somebody did
            infra.versions.invalidate()
            look_at_versions()
        if queue_id == config_versions.TOPIC:
            return
        name = None if queue_id is None else broker.queues.name_of_id(queue_id)
        if name is None:
            look()  # a queue that we have not heard of, or word that some words were missed
        else:
            broker.waiting.wake(name, job_types)

    broker.signals.on_ready = on_ready
    infra.versions.hear("policies", _looker(look))


def _looker(look: Callable[[], None]) -> VersionHandler:
    """Whatever was configured may have made jobs claimable: resumed, unlimited, raised."""

    async def hear() -> None:
        look()

    return hear
