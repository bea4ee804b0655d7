"""The jobs of a run.

The n-th call of a producer is a function of the seed, except for its times."""

import random
from datetime import UTC, datetime
from typing import Literal

from tests.api_client import Json
from tests.chaos.history import Item, now, payload_hash
from tests.chaos.options import Options

EnqueueMode = Literal["keyed", "keyless", "sql"]

WORK, LIMITED, GROUPED, FIFO = "work", "limited", "grouped", "fifo"
# Queues for one feature each: several lanes, a rate limit, fairness, pauses, purges, dependencies,
# and the target of replays.
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
    FIFO: {},
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
_SHARES = {WORK: 70, LIMITED: 8, GROUPED: 8, FIFO: 2, WIDE: 5, RATED: 2, FAIR: 2, PAUSED: 2, PURGED: 1}
DEPENDENT_BATCHES = 0.1  # share of batches whose jobs depend on each other


def batch_sizes(options: Options, producer: int) -> list[int]:
    """Returns the number of jobs of each call of a producer; a call with one job is a `POST
    /jobs`."""
    left = options.jobs // options.producers + (producer < options.jobs % options.producers)
    rng, batches = random.Random(f"{options.seed}/{producer}/sizes"), []
    limit = max(4, min(100, options.jobs // 100), min(500, options.jobs // 2000))
    while left:
        batches.append(min(left, 1 if rng.random() < 0.3 else rng.randint(2, limit)))
        left -= batches[-1]
    return batches


def enqueue_mode(options: Options, producer: int, call: int) -> EnqueueMode:
    """Chooses how a call is made: with an Idempotency-Key, without one, or as SQL in a
    transaction."""
    draw = random.Random(f"{options.seed}/{producer}/{call}/way").random()
    if draw < options.keyless:
        return "keyless"
    return "sql" if draw < options.keyless + options.sql else "keyed"


def jobs_of(options: Options, producer: int, call: int, size: int) -> list[Json]:
    """Returns the jobs of one call. SQL has no references between jobs of one transaction."""
    rng = random.Random(f"{options.seed}/{producer}/{call}")
    jobs = [_job(rng, f"p{producer}-{call}-{index}", options.focus) for index in range(size)]
    if size >= 3 and rng.random() < DEPENDENT_BATCHES and enqueue_mode(options, producer, call) != "sql":
        _add_dependencies(rng, jobs)
    return jobs


def _job(rng: random.Random, key: str, focus: str) -> Json:
    queue = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    if focus and rng.random() < 0.6:
        queue = focus
    job: Json = {
        "queue": queue,
        "job_type": "chaos",
        "payload": {"key": key, "n": rng.randint(0, 10**12), "é": [None, 1.5, "x" * 20]},
    }
    if queue == GROUPED:
        return job | {"group": f"g{rng.randrange(GROUPS)}"}
    if queue in FEATURES:
        return job | _feature(rng, queue)
    if rng.random() < 0.1:
        job["priority"] = rng.randint(-3, 5)
    if queue == WORK and rng.random() < 0.08:
        job["run_at"] = _instant(rng.uniform(0.5, 5))
    if queue == WORK and rng.random() < 0.05:
        job["unique"] = {"key": f"u{rng.randrange(50)}"}
    if rng.random() < 0.1:
        job["max_attempts"] = 3
    return job


def _feature(rng: random.Random, queue: str) -> Json:
    """Returns fields that only jobs of the feature queues have.

    Deadlines, timeouts and replacement would break the order rules of the other queues."""
    if queue == FAIR:
        return {"group": f"f{rng.randrange(FAIR_GROUPS)}"}
    if queue != WIDE:
        return {"run_at": _instant(rng.uniform(0.5, 3))} if rng.random() < 0.2 else {}
    draw = rng.random()
    if draw < 0.1:
        return {"expires_at": _instant(rng.uniform(0.5, 6))}
    if draw < 0.35:
        return {"timeout_seconds": 1, "max_attempts": 3}  # few exceed it: those of a worker that pauses or dies
    if draw < 0.45:
        return {"unique": {"key": f"r{rng.randrange(10)}", "on_duplicate": "replace"}, "delay_seconds": 1}
    return {"max_attempts": 1} if draw < 0.55 else {}


def _add_dependencies(rng: random.Random, jobs: list[Json]) -> None:
    """Makes the last jobs of a batch depend on one or two jobs before them, which cannot form a
    cycle.

    Some have on_parent_failure `run`."""
    for index in range(len(jobs)):
        jobs[index]["ref"] = f"j{index}"
    for index in range(len(jobs) - min(3, len(jobs) // 3), len(jobs)):
        parents = rng.sample(range(index), min(index, rng.randint(1, 2)))
        plain = {name: jobs[index][name] for name in ("job_type", "payload", "ref")}
        jobs[index] = plain | {"queue": TREE, "depends_on": [f"j{parent}" for parent in sorted(parents)]}
        if rng.random() < 0.3:
            jobs[index]["on_parent_failure"] = "run"


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
