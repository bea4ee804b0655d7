"""Builds every service of the broker, connects them, and starts the background services.

This is the only module that knows all packages. A background service runs when another service
wakes it, and at a fixed interval: the interval covers work that no other service announced.
"""

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
from app.maintenance.cleaner import Cleaner
from app.maintenance.dependency_resolver import DependencyResolver
from app.maintenance.due_check import DueCheck
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.maintenance.partitions import Partitions
from app.maintenance.ready_poller import ReadyPoller
from app.maintenance.services import PeriodicService, ServiceRunner
from app.maintenance.start_deadline import StartDeadlineEnforcer
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
    """All services of one broker process."""

    infra: Infrastructure
    authenticator: ApiKeyAuthenticator
    api_keys: ApiKeyService
    path_access: PathAccess
    queues: QueueCache
    queue_service: QueueService
    signals: Signals
    enqueuer: EnqueueService
    reader: JobReader
    pollers: PollerRegistry
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
    services: tuple[object, ...]

    async def finish(self) -> None:
        """Stores the requests already accepted, and returns matched jobs whose poller is gone."""
        await asyncio.gather(self.enqueuer.finish(), self.claims.finish(), self.settlements.finish())
        await self.matcher.run_once()

    def drain(self) -> None:
        """Answers parked polls and result waiters now. From here on /readyz fails."""
        self.pollers.drain()
        self.reader.drain()


def build_broker(settings: Settings, dsn: str) -> Broker:
    infra = _infrastructure(settings, dsn)
    queues, job_types, signals, durations = (
        QueueCache(infra),
        JobTypeCache(infra),
        Signals(infra.notifier),
        DurationHistogram(),
    )
    pollers, workers, poll_history, group_scheduler = (
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
    settlements = SettlementService(infra, queues, signals, durations, group_scheduler)
    matcher = SyncMatcher(infra, queues, pollers, settlements)
    enqueuer.offer = matcher.offer
    dead_letters = DeadLetterService(infra, queues, creator, signals, reader)
    periodic_enqueuer = PeriodicEnqueuer(infra, enqueuer, reader)
    stats = StatsService(infra, queues, pollers, durations)
    claims = ClaimService(infra, queues, signals, durations)
    api_keys = ApiKeyService(infra)
    services = (
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
        LongPoll(infra, queues, pollers, settlements, workers, poll_history, claims),
        HeartbeatService(infra, queues, settlements, workers),
        dead_letters,
        periodic_enqueuer,
        ScheduleService(infra, enqueuer, periodic_enqueuer),
        stats,
        JobExplainer(infra, queues, reader, poll_history, pollers),
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
        pollers,
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
        services,
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
    """Starts the background services. Other services wake them; the interval is the safety net."""
    infra, settings = broker.infra, broker.infra.settings
    job_scheduler, dependency_resolver = (
        JobScheduler(infra, broker.queues, broker.signals),
        DependencyResolver(infra, broker.queues, broker.signals),
    )
    lease_rescuer, start_deadlines = (
        LeaseRescuer(infra, broker.settlements),
        StartDeadlineEnforcer(infra, broker.queues, broker.signals),
    )
    runner.add(PeriodicService("clock", lambda: infra.clock.refresh(infra.db), 1.0))
    runner.add(PeriodicService("inspection", infra.server_checks.run_once, server_checks.SECONDS))
    check_versions = runner.add(
        PeriodicService("versions", infra.config_versions.keep_fresh, config_versions.CHECK_SECONDS)
    )
    scans = {
        "turns": broker.group_scheduler.run_once,
        "releasing": dependency_resolver.run_once,
        "promotion": job_scheduler.run_once,
        "firing": broker.periodic_enqueuer.run_once,
        "expiry": lease_rescuer.run_once,
        "lateness": start_deadlines.run_once,
    }
    wakes = {
        name: runner.add(PeriodicService(name, scan, settings.sweep_seconds * due_check.SAFETY_RUN_EVERY))
        for name, scan in scans.items()
    }
    broker.group_scheduler.wake, broker.signals.on_ended = wakes["turns"], wakes["releasing"]
    job_scheduler.wake, broker.periodic_enqueuer.wake = wakes["promotion"], wakes["firing"]
    runner.add(
        PeriodicService(
            "rounds",
            DueCheck(infra, lease_rescuer, job_scheduler, broker.periodic_enqueuer, wakes).run_once,
            settings.sweep_seconds,
        )
    )
    broker.rule_changes.wake = runner.add(
        PeriodicService("sorting", broker.rule_changes.run_once, settings.sweep_seconds)
    )
    broker.matcher.wake = runner.add(PeriodicService("hand-offs", broker.matcher.run_once, settings.sweep_seconds))
    check_ready = runner.add(
        PeriodicService("look", ReadyPoller(infra, broker.queues, broker.pollers).run_once, settings.poll_seconds)
    )
    runner.add(PeriodicService("floors", broker.claims.low_water_marks.run_once, low_water_marks.SCAN_SECONDS))
    runner.add(PeriodicService("roster", broker.workers.sync, 1.0))
    runner.add(PeriodicService("key use", broker.authenticator.write_last_used, 5.0))
    runner.add(PeriodicService("asks", broker.poll_history.write, 1.0))
    runner.add(PeriodicService("times", broker.stats.write_durations, 1.0))
    runner.add(PeriodicService("fold", broker.stats.aggregate, 1.0, leader_only=True))
    runner.add(PeriodicService("health", broker.stats.watch_health, 5.0))
    runner.add(PeriodicService("partitions", Partitions(infra, broker.queues).run_once, 60.0, leader_only=True))
    runner.add(PeriodicService("retention", Cleaner(infra, broker.dead_letters).run_once, 60.0, leader_only=True))
    runner.add(PeriodicService("used queues", broker.queue_service.revive_used, 5.0, leader_only=True))
    runner.start_task("wakeups", infra.notifier.run)
    broker.workers.on_directive = broker.pollers.wake_worker

    def on_ready(queue_id: int | None, job_types: Iterable[str | None]) -> None:
        # The configuration changed, or (None) this process may have missed such a notification.
        if queue_id in (None, config_versions.TOPIC):
            infra.config_versions.invalidate()
            check_versions()
        if queue_id == config_versions.TOPIC:
            return
        name = None if queue_id is None else broker.queues.name_of_id(queue_id)
        if name is None:
            check_ready()  # a queue not yet in the cache, or wake-ups may have been missed
        else:
            broker.pollers.wake(name, job_types)

    broker.signals.on_ready = on_ready
    infra.config_versions.subscribe("policies", _run_on_change(check_ready))


def _run_on_change(check: Callable[[], None]) -> VersionHandler:
    """Wraps `check` as a handler of configuration changes.

    A change may make jobs claimable: a queue is resumed, or a limit is raised or removed."""

    async def on_change() -> None:
        check()

    return on_change
