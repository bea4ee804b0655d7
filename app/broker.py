"""Builds all services of one broker process, starts them, drains them, and finishes their work.

Only this module imports the services of all packages. `build_broker` builds a service after the
services that it needs. The tuple `background` in `build_broker` says which services run in every
broker, and which run only in the leader.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from app.api_keys.authenticator import ApiKeyAuthenticator
from app.api_keys.service import ApiKeyService
from app.concurrency.group_scheduler import GroupScheduler
from app.concurrency.queue_limits import QueueLimits
from app.concurrency.rule_changes import RuleChanges
from app.db import config_versions, server_checks
from app.db.clock import DatabaseClock
from app.db.config_versions import ConfigVersions
from app.db.infrastructure import Infrastructure
from app.db.lanes import JobIdGenerator
from app.db.notifier import Notifier
from app.db.pool import Database
from app.db.read_connections import ReadConnections
from app.db.server_checks import ServerChecks
from app.dead_letters.replay import DeadLetterReplayer
from app.dead_letters.service import DeadLetterService
from app.enqueue.batch_parser import BatchParser
from app.enqueue.draft_writer import DraftWriter
from app.enqueue.parser import JobParser
from app.enqueue.service import EnqueueService
from app.events import EventBus
from app.explain.reasons import JobExplainer
from app.job_types.cache import JobTypeCache
from app.job_types.service import JobTypeService
from app.jobs.path_access import PathAccess
from app.jobs.purge import QueuePurger
from app.jobs.reader import JobReader
from app.jobs.updater import JobUpdater
from app.leases import low_water_marks
from app.leases.caller_claims import CallerClaims
from app.leases.claim import ClaimService
from app.leases.duration_histogram import DurationHistogram
from app.leases.heartbeat import HeartbeatService
from app.leases.lease_ender import LeaseEnder
from app.leases.limited_claims import LimitedClaims
from app.leases.long_poll import LongPoll
from app.leases.low_water_marks import LowWaterMarks
from app.leases.settle import SettlementService
from app.maintenance.cleaner import Cleaner
from app.maintenance.clock_sampler import ClockSampler
from app.maintenance.coverage_repairer import CoverageRepairer
from app.maintenance.dependency_resolver import DependencyResolver
from app.maintenance.due_check import SAFETY_RUN_EVERY, DueCheck
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.maintenance.lease_returner import LeaseReturner
from app.maintenance.partitions import Partitions
from app.maintenance.ready_poller import ReadyPoller
from app.maintenance.services import BackgroundService, ServiceRunner
from app.maintenance.start_deadline import StartDeadlineEnforcer
from app.matching.pollers import PollerRegistry
from app.metrics import Metrics
from app.periodic_service import FunctionService
from app.queues.cache import QueueCache
from app.queues.creator import QueueCreator
from app.queues.service import QueueService
from app.schedules.enqueuer import PeriodicEnqueuer
from app.schedules.service import ScheduleService
from app.settings import Settings
from app.stats.service import StatsService
from app.workers.registry import PollHistory, WorkerRegistry

FINISH_SECONDS = 5  # for statements that are still running after the last client connection has closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """All services of one process. Routes reach them by name through `app.state.broker`."""

    infra: Infrastructure
    events: EventBus
    authenticator: ApiKeyAuthenticator
    api_keys: ApiKeyService
    path_access: PathAccess
    queues: QueueCache
    queue_service: QueueService
    job_types: JobTypeService
    purger: QueuePurger
    reader: JobReader
    updater: JobUpdater
    workers: WorkerRegistry
    poll_history: PollHistory
    group_scheduler: GroupScheduler
    rule_changes: RuleChanges
    pollers: PollerRegistry
    enqueuer: EnqueueService
    low_water_marks: LowWaterMarks
    claims: ClaimService
    lease_ender: LeaseEnder
    settlements: SettlementService
    long_poll: LongPoll
    heartbeats: HeartbeatService
    dead_letters: DeadLetterService
    schedules: ScheduleService
    periodic_enqueuer: PeriodicEnqueuer
    stats: StatsService
    explainer: JobExplainer
    lease_returner: LeaseReturner
    due_check: DueCheck
    background: tuple[BackgroundService, ...]

    def start(self, runner: ServiceRunner) -> None:
        """Starts the background services. Stopping the runner stops them."""
        for background in self.background:
            runner.add(background)
        runner.start_task("notifier", self.infra.notifier.run)

    def drain(self) -> None:
        """Answers all requests that wait for jobs or for the end of a job. Makes /readyz fail."""
        self.pollers.drain()
        self.reader.drain()

    async def finish(self) -> None:
        """Waits until accepted requests are stored, requeues the jobs of abandoned leases, and
        writes statistics. Ignores errors. The first two steps end after FINISH_SECONDS at the
        latest."""
        with suppress(Exception):
            async with asyncio.timeout(FINISH_SECONDS):
                await asyncio.gather(self.enqueuer.finish(), self.claims.finish(), self.settlements.finish())
                await self.lease_returner.run_once()
        with suppress(Exception):
            await self.stats.write_durations()


def build_broker(settings: Settings, dsn: str) -> Broker:
    """Builds all services. Starts nothing and opens no connection."""
    events = EventBus()
    infra = _build_infrastructure(settings, dsn, events)
    durations = DurationHistogram()
    queues = QueueCache(infra=infra)
    job_types = JobTypeCache(infra=infra)
    creator = QueueCreator(infra=infra, queues=queues)
    queue_service = QueueService(infra=infra)
    reader = JobReader(infra=infra, queues=queues, events=events)
    workers = WorkerRegistry(infra=infra, events=events)
    poll_history = PollHistory(infra=infra)
    group_scheduler = GroupScheduler(infra=infra, queues=queues, events=events)
    rule_changes = RuleChanges(infra=infra, queues=queues, events=events, group_scheduler=group_scheduler)
    pollers = PollerRegistry(events=events, queues=queues, metrics=infra.metrics)
    parser = JobParser(infra=infra, queues=queues, job_types=job_types)
    enqueuer = EnqueueService(
        infra=infra,
        queues=queues,
        creator=creator,
        parser=parser,
        batch_parser=BatchParser(infra=infra, parser=parser),
        writer=DraftWriter(infra=infra, queues=queues, creator=creator),
        pollers=pollers,
        events=events,
    )
    lease_ender = LeaseEnder(infra=infra, queues=queues, events=events, group_scheduler=group_scheduler)
    settlements = SettlementService(infra=infra, queues=queues, lease_ender=lease_ender, durations=durations)
    marks = LowWaterMarks(db=infra.db, events=events)
    limited_claims = LimitedClaims(
        infra=infra, queues=queues, events=events, limits=QueueLimits(infra=infra), low_water_marks=marks
    )
    claims = ClaimService(
        infra=infra,
        queues=queues,
        events=events,
        limited_claims=limited_claims,
        low_water_marks=marks,
        durations=durations,
    )
    authenticator = ApiKeyAuthenticator(infra=infra)
    dead_letters = DeadLetterService(
        infra=infra,
        queues=queues,
        reader=reader,
        replayer=DeadLetterReplayer(infra=infra, queues=queues, creator=creator, events=events),
    )
    periodic_enqueuer = PeriodicEnqueuer(infra=infra, enqueuer=enqueuer, reader=reader)
    stats = StatsService(infra=infra, queues=queues, pollers=pollers, durations=durations)
    lease_returner = LeaseReturner(lease_ender=lease_ender, events=events)
    due = DueCheck(
        infra=infra,
        lease_rescuer=LeaseRescuer(infra=infra, lease_ender=lease_ender),
        job_scheduler=JobScheduler(infra=infra, queues=queues, events=events),
        periodic_enqueuer=periodic_enqueuer,
        start_deadlines=StartDeadlineEnforcer(infra=infra, queues=queues, events=events),
        dependency_resolver=DependencyResolver(infra=infra, queues=queues, events=events),
        group_scheduler=group_scheduler,
    )
    ready_poller = ReadyPoller(infra=infra, queues=queues, pollers=pollers, events=events)
    scan_seconds = settings.sweep_seconds
    background = (
        # Services of every broker. A service that the due check wakes also runs at a long interval.
        BackgroundService("clock", ClockSampler(infra=infra), 1.0),
        BackgroundService("server checks", infra.server_checks, server_checks.CHECK_SECONDS),
        BackgroundService("config versions", infra.config_versions, config_versions.CHECK_SECONDS),
        *(BackgroundService(name, service, scan_seconds * SAFETY_RUN_EVERY) for name, service in due.services.items()),
        BackgroundService("due check", due, scan_seconds),
        BackgroundService("rule changes", rule_changes, scan_seconds),
        BackgroundService("lease returner", lease_returner, scan_seconds),
        BackgroundService("ready poller", ready_poller, settings.poll_seconds),
        BackgroundService("low-water marks", marks, low_water_marks.SCAN_SECONDS),
        BackgroundService("worker registry", FunctionService(workers.sync), 1.0),
        BackgroundService("API key use", FunctionService(authenticator.write_last_used), 5.0),
        BackgroundService("poll history", FunctionService(poll_history.write), 1.0),
        BackgroundService("durations", FunctionService(stats.write_durations), 1.0),
        BackgroundService("queue health", FunctionService(stats.watch_health), 5.0),
        # Services that run in one broker at a time, the leader.
        BackgroundService("statistics", FunctionService(stats.aggregate), 1.0, leader_only=True),
        BackgroundService("partitions", Partitions(infra=infra, queues=queues), 60.0, leader_only=True),
        BackgroundService("cleaner", Cleaner(infra=infra, dead_letters=dead_letters), 60.0, leader_only=True),
        BackgroundService("coverage repair", CoverageRepairer(infra=infra), 2.0, leader_only=True),
        BackgroundService("queue repair", FunctionService(queue_service.repair), 5.0, leader_only=True),
    )
    return Broker(
        infra=infra,
        events=events,
        authenticator=authenticator,
        api_keys=ApiKeyService(infra=infra),
        path_access=PathAccess(infra=infra, queues=queues),
        queues=queues,
        queue_service=queue_service,
        job_types=JobTypeService(infra=infra),
        purger=QueuePurger(infra=infra, queues=queues, events=events),
        reader=reader,
        updater=JobUpdater(infra=infra, queues=queues, events=events, reader=reader),
        workers=workers,
        poll_history=poll_history,
        group_scheduler=group_scheduler,
        rule_changes=rule_changes,
        pollers=pollers,
        enqueuer=enqueuer,
        low_water_marks=marks,
        claims=claims,
        lease_ender=lease_ender,
        settlements=settlements,
        long_poll=LongPoll(
            infra=infra,
            queues=queues,
            events=events,
            pollers=pollers,
            settlements=settlements,
            lease_ender=lease_ender,
            workers=workers,
            poll_history=poll_history,
            claims=claims,
            caller_claims=CallerClaims(infra=infra, queues=queues, claims=claims),
        ),
        heartbeats=HeartbeatService(infra=infra, queues=queues, lease_ender=lease_ender, workers=workers),
        dead_letters=dead_letters,
        schedules=ScheduleService(infra=infra, enqueuer=enqueuer, periodic_enqueuer=periodic_enqueuer),
        periodic_enqueuer=periodic_enqueuer,
        stats=stats,
        explainer=JobExplainer(infra=infra, queues=queues, reader=reader, poll_history=poll_history, pollers=pollers),
        lease_returner=lease_returner,
        due_check=due,
        background=background,
    )


def _build_infrastructure(settings: Settings, dsn: str, events: EventBus) -> Infrastructure:
    metrics, clock = Metrics(), DatabaseClock()
    listen_dsn = settings.listen_url.get_secret_value() if settings.listen_url else dsn
    notifier = Notifier(dsn=listen_dsn, metrics=metrics, events=events, enabled=settings.notify)
    db = Database(dsn, settings, metrics)
    return Infrastructure(
        settings=settings,
        metrics=metrics,
        db=db,
        read_connections=ReadConnections(db, settings),
        server_checks=ServerChecks(db, settings, metrics),
        clock=clock,
        now=clock.now,
        retention_now=clock.retention.now,
        job_ids=JobIdGenerator(),
        notifier=notifier,
        config_versions=ConfigVersions(db=db, notifier=notifier, events=events),
    )
