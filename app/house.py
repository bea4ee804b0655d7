"""Every room, built on one floor and joined by what they tell each other; and the chores that keep the house."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.api_keys.issuing import ApiKeyService
from app.api_keys.keyring import ApiKeyAuthenticator
from app.db import inspection, versions
from app.db.clock import DatabaseClock
from app.db.floor import Infrastructure
from app.db.inspection import ServerChecks
from app.db.lanes import JobIdGenerator
from app.db.pool import Database
from app.db.reads import SearchConnections
from app.db.versions import ConfigVersions, VersionHandler
from app.db.wakeups import Notifier
from app.dead_letters.reviving import DeadLetterService
from app.explain.explaining import JobExplainer
from app.job_types.configuring import JobTypeService
from app.job_types.registry import JobTypeCache
from app.jobs.borders import PathAccess
from app.jobs.changing import JobUpdater
from app.jobs.intake import EnqueueService
from app.jobs.reading import JobParser
from app.jobs.signals import Signals
from app.jobs.watching import JobReader
from app.leases import floors
from app.leases.beating import HeartbeatService
from app.leases.claiming import LongPoll
from app.leases.handing import SyncMatcher
from app.leases.settling import SettlementService
from app.leases.taking import ClaimService
from app.leases.times import DurationHistogram
from app.leases.waiting import PollerRegistry
from app.limits.sorting import RuleChanges
from app.limits.turns import GroupScheduler
from app.maintenance import rounds
from app.maintenance.chores import Cleaner, JobScheduler, LeaseRescuer, Partitions, ReadyPoller, StartDeadlineEnforcer
from app.maintenance.releasing import DependencyResolver
from app.maintenance.rounds import DueCheck
from app.maintenance.runner import PeriodicService, ServiceRunner
from app.metrics import Metrics
from app.purging.purging import QueuePurger
from app.queues.configuring import QueueService
from app.queues.creator import QueueCreator
from app.queues.registry import QueueCache
from app.schedules.firing import PeriodicEnqueuer
from app.schedules.keeping import ScheduleService
from app.settings import Settings
from app.stats.reckoning import StatsService
from app.workers.asks import PollHistory
from app.workers.roster import WorkerRegistry


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
    runner.start(PeriodicService("inspection", floor.inspection.run_once, inspection.SECONDS))
    look_at_versions = runner.start(PeriodicService("versions", floor.versions.keep_fresh, versions.CHECK_SECONDS))
    sweeps = {
        "turns": house.turns.run_once,
        "releasing": releasing.run_once,
        "promotion": promotion.run_once,
        "firing": house.firing.run_once,
        "expiry": expiry.run_once,
        "lateness": lateness.run_once,
    }
    nudges = {name: runner.start(PeriodicService(name, sweep, settings.sweep_seconds * rounds.REGULARLY)) for name, sweep in sweeps.items()}
    house.turns.nudge, house.signals.on_ended = nudges["turns"], nudges["releasing"]
    promotion.nudge, house.firing.nudge = nudges["promotion"], nudges["firing"]
    runner.start(PeriodicService("rounds", DueCheck(floor, expiry, promotion, house.firing, nudges).run_once, settings.sweep_seconds))
    house.sorting.nudge = runner.start(PeriodicService("sorting", house.sorting.run_once, settings.sweep_seconds))
    house.handing.nudge = runner.start(PeriodicService("hand-offs", house.handing.run_once, settings.sweep_seconds))
    look = runner.start(PeriodicService("look", ReadyPoller(floor, house.queues, house.waiting).run_once, settings.poll_seconds))
    runner.start(PeriodicService("floors", house.taking.floors.run_once, floors.SCAN_SECONDS))
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
        if queue_id in (None, versions.TOPIC):  # somebody has configured something, or we may have missed that somebody did
            floor.versions.outdated()
            look_at_versions()
        if queue_id == versions.TOPIC:
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
