"""Every room, built on one floor and joined by what they tell each other; and the chores that keep the house."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.api_keys.issuing import Issuing
from app.api_keys.keyring import Keyring
from app.db import inspection, versions
from app.db.clock import DatabaseClock
from app.db.floor import Floor
from app.db.inspection import Inspection
from app.db.lanes import IdMint
from app.db.pool import Database
from app.db.reads import Reads
from app.db.versions import Hear, Versions
from app.db.wakeups import Wakeups
from app.dead_letters.reviving import Reviving
from app.explain.explaining import Explaining
from app.job_types.configuring import Configuring as TypeConfiguring
from app.job_types.registry import JobTypes
from app.jobs.borders import Borders
from app.jobs.changing import Changing
from app.jobs.intake import Intake
from app.jobs.reading import Reading
from app.jobs.signals import Signals
from app.jobs.watching import Watching
from app.leases import floors
from app.leases.beating import Beating
from app.leases.claiming import Claiming
from app.leases.handing import Handing
from app.leases.settling import Settling
from app.leases.taking import Taking
from app.leases.times import Times
from app.leases.waiting import WaitingRoom
from app.limits.sorting import Sorting
from app.limits.turns import Turns
from app.maintenance import rounds
from app.maintenance.chores import Expiry, Lateness, Look, Partitions, Promotion, Retention
from app.maintenance.releasing import Releasing
from app.maintenance.rounds import Rounds
from app.maintenance.runner import Chore, Runner
from app.metrics import Metrics
from app.purging.purging import Purging
from app.queues.configuring import Configuring
from app.queues.creator import QueueCreator
from app.queues.registry import Queues
from app.schedules.firing import Firing
from app.schedules.keeping import Keeping
from app.settings import Settings
from app.stats.reckoning import Reckoning
from app.workers.asks import Asks
from app.workers.roster import Roster


@dataclass(frozen=True, slots=True)
class House:
    floor: Floor
    keyring: Keyring
    issuing: Issuing
    borders: Borders
    queues: Queues
    configuring: Configuring
    signals: Signals
    intake: Intake
    watching: Watching
    waiting: WaitingRoom
    roster: Roster
    asks: Asks
    turns: Turns
    sorting: Sorting
    settling: Settling
    handing: Handing
    taking: Taking
    reviving: Reviving
    firing: Firing
    reckoning: Reckoning
    rooms: tuple[object, ...]

    async def finish(self) -> None:
        """What callers have brought is stored, and what nobody is there to take goes back."""
        await asyncio.gather(self.intake.finish(), self.taking.finish(), self.settling.finish())
        await self.handing.run_once()

    def drain(self) -> None:
        """Parked polls and watchers are answered now; /readyz says no from here on."""
        self.waiting.drain()
        self.watching.drain()


def build(settings: Settings, dsn: str) -> House:
    floor = _floor(settings, dsn)
    queues, job_types, signals, times = Queues(floor), JobTypes(floor), Signals(floor.wakeups), Times()
    waiting, roster, asks, turns = WaitingRoom(floor.metrics), Roster(floor), Asks(floor, queues), Turns(floor, queues, signals)
    sorting = Sorting(floor, queues, signals, turns)
    watching = Watching(floor, queues, signals)
    configuring = Configuring(floor)
    creator = QueueCreator(floor, queues)
    intake = Intake(floor, queues, creator, Reading(floor, queues, job_types), signals)
    settling = Settling(floor, queues, signals, times, turns)
    handing = Handing(floor, queues, waiting, settling)
    intake.offer = handing.offer
    reviving = Reviving(floor, queues, creator, signals, watching)
    firing = Firing(floor, intake, watching)
    reckoning = Reckoning(floor, queues, waiting, times)
    taking = Taking(floor, queues, signals, times)
    issuing = Issuing(floor)
    rooms = (
        issuing,
        configuring,
        TypeConfiguring(floor),
        queues,
        intake,
        watching,
        Changing(floor, queues, signals, watching),
        Purging(floor, queues, signals, turns.look_at),
        roster,
        settling,
        Claiming(floor, queues, waiting, settling, roster, asks, taking),
        Beating(floor, queues, settling, roster),
        reviving,
        firing,
        Keeping(floor, intake, firing),
        reckoning,
        Explaining(floor, queues, watching, asks, waiting),
    )
    return House(
        floor,
        Keyring(floor),
        issuing,
        Borders(floor, queues),
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


def _floor(settings: Settings, dsn: str) -> Floor:
    metrics, clock = Metrics(), DatabaseClock()
    listen = settings.listen_url.get_secret_value() if settings.listen_url else dsn
    wakeups = Wakeups(listen, metrics, enabled=settings.notify)
    db = Database(dsn, settings, metrics)
    return Floor(
        settings,
        metrics,
        db,
        Reads(db, settings),
        Inspection(db, settings, metrics),
        clock,
        IdMint(clock.now),
        wakeups,
        Versions(db, wakeups),
    )


def start_chores(house: House, runner: Runner) -> None:
    """Whoever has work for a chore nudges it; the seconds are for what nobody has told us."""
    floor, settings = house.floor, house.floor.settings
    promotion, releasing = Promotion(floor, house.queues, house.signals), Releasing(floor, house.queues, house.signals)
    expiry, lateness = Expiry(floor, house.settling), Lateness(floor, house.queues, house.signals)
    runner.start(Chore("clock", lambda: floor.clock.refresh(floor.db), 1.0))
    runner.start(Chore("inspection", floor.inspection.run_once, inspection.SECONDS))
    look_at_versions = runner.start(Chore("versions", floor.versions.keep_fresh, versions.LOOK_SECONDS))
    sweeps = {
        "turns": house.turns.run_once,
        "releasing": releasing.run_once,
        "promotion": promotion.run_once,
        "firing": house.firing.run_once,
        "expiry": expiry.run_once,
        "lateness": lateness.run_once,
    }
    nudges = {name: runner.start(Chore(name, sweep, settings.sweep_seconds * rounds.REGULARLY)) for name, sweep in sweeps.items()}
    house.turns.nudge, house.signals.on_ended = nudges["turns"], nudges["releasing"]
    promotion.nudge, house.firing.nudge = nudges["promotion"], nudges["firing"]
    runner.start(Chore("rounds", Rounds(floor, expiry, promotion, house.firing, nudges).run_once, settings.sweep_seconds))
    house.sorting.nudge = runner.start(Chore("sorting", house.sorting.run_once, settings.sweep_seconds))
    house.handing.nudge = runner.start(Chore("hand-offs", house.handing.run_once, settings.sweep_seconds))
    look = runner.start(Chore("look", Look(floor, house.queues, house.waiting).run_once, settings.poll_seconds))
    runner.start(Chore("floors", house.taking.floors.run_once, floors.LOOK_SECONDS))
    runner.start(Chore("roster", house.roster.exchange, 1.0))
    runner.start(Chore("key use", house.keyring.write_used, 5.0))
    runner.start(Chore("asks", house.asks.write, 1.0))
    runner.start(Chore("times", house.reckoning.write_times, 1.0))
    runner.start(Chore("fold", house.reckoning.fold, 1.0, led=True))
    runner.start(Chore("health", house.reckoning.watch_health, 5.0))
    runner.start(Chore("partitions", Partitions(floor, house.queues).run_once, 60.0, led=True))
    runner.start(Chore("retention", Retention(floor, house.reviving).run_once, 60.0, led=True))
    runner.start(Chore("used queues", house.configuring.revive_used, 5.0, led=True))
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


def _looker(look: Callable[[], None]) -> Hear:
    """Whatever was configured may have made jobs claimable: resumed, unlimited, raised."""

    async def hear() -> None:
        look()

    return hear
