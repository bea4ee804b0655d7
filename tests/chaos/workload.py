"""Which jobs there are: what a producer sends in its n-th call is a function of the seed, but for the instants in it."""

import random
from datetime import UTC, datetime
from typing import Literal

from tests.api import Json
from tests.chaos.history import Item, now, payload_hash
from tests.chaos.options import Options

Way = Literal["keyed", "keyless", "sql"]

WORK, LIMITED, GROUPED, LINE = "work", "limited", "grouped", "line"
# Queues for one feature each: several lanes, a rate, fair turns, pauses, purges, dependencies; and the target of replays.
WIDE, RATED, FAIR, PAUSED, PURGED, TREE, MOVED = "wide", "rated", "fair", "paused", "purged", "tree", "moved"
FEATURES = (WIDE, RATED, FAIR, PAUSED, PURGED, TREE, MOVED)
MAX_RUNNING = 12
RATE = {"limit": 60, "per_seconds": 1}
GROUPS = 60
FAIR_GROUPS = 5
QUICK_RETRY = {"base_seconds": 1, "factor": 1, "max_seconds": 1, "jitter": 0}
_RULES: dict[str, Json] = {
    WORK: {},
    LIMITED: {"max_running": MAX_RUNNING},
    GROUPED: {"max_running_per_group": 1},
    LINE: {},
    WIDE: {"lanes": 8},
    RATED: {"rate": RATE},
    FAIR: {"fair": True},
    PAUSED: {},
    PURGED: {"lanes": 2},
    TREE: {},
    MOVED: {"lanes": 4},
}
QUEUES: dict[str, Json] = {name: {"default_retry": QUICK_RETRY} | rules for name, rules in _RULES.items()}
SCHEDULES = {"every-second": 1, "every-three": 3}
_SHARES = {WORK: 70, LIMITED: 8, GROUPED: 8, LINE: 2, WIDE: 5, RATED: 2, FAIR: 2, PAUSED: 2, PURGED: 1}
FAMILIES = 0.1  # share of batches whose jobs depend on each other


def sizes(options: Options, producer: int) -> list[int]:
    """How many jobs each call of a producer has; one is a `POST /jobs`."""
    left = options.jobs // options.producers + (producer < options.jobs % options.producers)
    dice, found = random.Random(f"{options.seed}/{producer}/sizes"), []
    most = max(4, min(100, options.jobs // 100), min(500, options.jobs // 2000))
    while left:
        found.append(min(left, 1 if dice.random() < 0.3 else dice.randint(2, most)))
        left -= found[-1]
    return found


def way_of(options: Options, producer: int, call: int) -> Way:
    """How a call is made: with an Idempotency-Key, without one, or as SQL in the producer's own transaction."""
    way = random.Random(f"{options.seed}/{producer}/{call}/way").random()
    if way < options.keyless:
        return "keyless"
    return "sql" if way < options.keyless + options.sql else "keyed"


def jobs_of(options: Options, producer: int, call: int, size: int) -> list[Json]:
    """The jobs of one call. SQL has no references between jobs of one transaction."""
    dice = random.Random(f"{options.seed}/{producer}/{call}")
    jobs = [_job(dice, f"p{producer}-{call}-{place}", options.focus) for place in range(size)]
    if size >= 3 and dice.random() < FAMILIES and way_of(options, producer, call) != "sql":
        _relate(dice, jobs)
    return jobs


def _job(dice: random.Random, key: str, focus: str) -> Json:
    queue = dice.choices(list(_SHARES), list(_SHARES.values()))[0]
    if focus and dice.random() < 0.6:
        queue = focus
    job: Json = {
        "queue": queue,
        "job_type": "chaos",
        "payload": {"key": key, "n": dice.randint(0, 10**12), "é": [None, 1.5, "x" * 20]},
    }
    if queue == GROUPED:
        return job | {"group": f"g{dice.randrange(GROUPS)}"}
    if queue in FEATURES:
        return job | _feature(dice, queue)
    if dice.random() < 0.1:
        job["priority"] = dice.randint(-3, 5)
    if queue == WORK and dice.random() < 0.08:
        job["run_at"] = _instant(dice.uniform(0.5, 5))
    if queue == WORK and dice.random() < 0.05:
        job["unique"] = {"key": f"u{dice.randrange(50)}"}
    if dice.random() < 0.1:
        job["max_attempts"] = 3
    return job


def _feature(dice: random.Random, queue: str) -> Json:
    """Fields that only jobs of the feature queues have, because deadlines, timeouts and replacement would break the rules for order."""
    if queue == FAIR:
        return {"group": f"f{dice.randrange(FAIR_GROUPS)}"}
    if queue != WIDE:
        return {"run_at": _instant(dice.uniform(0.5, 3))} if dice.random() < 0.2 else {}
    fate = dice.random()
    if fate < 0.1:
        return {"expires_at": _instant(dice.uniform(0.5, 6))}
    if fate < 0.2:
        return {"timeout_seconds": 1, "max_attempts": 3}
    if fate < 0.3:
        return {"unique": {"key": f"r{dice.randrange(10)}", "on_duplicate": "replace"}, "delay_seconds": 1}
    return {"max_attempts": 1} if fate < 0.4 else {}


def _relate(dice: random.Random, jobs: list[Json]) -> None:
    """The last jobs of a batch depend on one or two before them, some with on_parent_failure run. This cannot make a cycle."""
    for place in range(len(jobs)):
        jobs[place]["ref"] = f"j{place}"
    for place in range(len(jobs) - min(3, len(jobs) // 3), len(jobs)):
        parents = dice.sample(range(place), min(place, dice.randint(1, 2)))
        plain = {name: jobs[place][name] for name in ("job_type", "payload", "ref")}
        jobs[place] = plain | {"queue": TREE, "depends_on": [f"j{parent}" for parent in sorted(parents)]}
        if dice.random() < 0.3:
            jobs[place]["on_parent_failure"] = "run"


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(round(now() + seconds, 3), UTC).isoformat()


def item_of(job: Json) -> Item:
    call = job["payload"]["key"].rpartition("-")[0]
    return Item(
        key=job["payload"]["key"],
        queue=job["queue"],
        group=job.get("group", ""),
        unique=job.get("unique", {}).get("key", ""),
        priority=job.get("priority", 0),
        payload=payload_hash(job["payload"]),
        run_at=_seconds(job, "run_at"),
        expires_at=_seconds(job, "expires_at"),
        timeout=job.get("timeout_seconds", 0),
        depends_on=[f"{call}-{ref[1:]}" for ref in job.get("depends_on", [])],
        on_conflict=job.get("unique", {}).get("on_duplicate", ""),
        on_parent_failure=job.get("on_parent_failure", ""),
    )


def _seconds(job: Json, name: str) -> float:
    return datetime.fromisoformat(job[name]).timestamp() if name in job else 0
