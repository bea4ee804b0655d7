"""Which jobs there are: what a producer sends in its n-th call is a function of the seed, but for the instants in it."""

import random
from datetime import UTC, datetime

from tests.api import Json
from tests.chaos.history import Item, now, payload_hash
from tests.chaos.options import Options

WORK, LIMITED, GROUPED, LINE = "work", "limited", "grouped", "line"
MAX_RUNNING = 12
GROUPS = 60
QUICK_RETRY = {"base_seconds": 1, "factor": 1, "max_seconds": 1, "jitter": 0}
QUEUES: dict[str, Json] = {
    WORK: {"default_retry": QUICK_RETRY},
    LIMITED: {"default_retry": QUICK_RETRY, "max_running": MAX_RUNNING},
    GROUPED: {"default_retry": QUICK_RETRY, "max_running_per_group": 1},
    LINE: {"default_retry": QUICK_RETRY},
}
SCHEDULES = {"every-second": 1, "every-three": 3}


def sizes(options: Options, producer: int) -> list[int]:
    """How many jobs each call of a producer has; one is a `POST /jobs`."""
    left = options.jobs // options.producers + (producer < options.jobs % options.producers)
    dice, found = random.Random(f"{options.seed}/{producer}/sizes"), []
    most = max(4, min(100, options.jobs // 100), min(500, options.jobs // 2000))
    while left:
        found.append(min(left, 1 if dice.random() < 0.3 else dice.randint(2, most)))
        left -= found[-1]
    return found


def jobs_of(options: Options, producer: int, call: int, size: int) -> list[Json]:
    dice = random.Random(f"{options.seed}/{producer}/{call}")
    return [_job(dice, f"p{producer}-{call}-{place}") for place in range(size)]


def _job(dice: random.Random, key: str) -> Json:
    queue = dice.choices((WORK, LIMITED, GROUPED, LINE), (82, 8, 8, 2))[0]
    job: Json = {"queue": queue, "job_type": "chaos", "payload": {"key": key, "n": dice.randint(0, 10**12), "é": [None, 1.5, "x" * 20]}}
    if queue == GROUPED:
        return job | {"group": f"g{dice.randrange(GROUPS)}"}
    if dice.random() < 0.1:
        job["priority"] = dice.randint(-3, 5)
    if queue == WORK and dice.random() < 0.08:
        job["run_at"] = datetime.fromtimestamp(round(now() + dice.uniform(0.5, 5), 3), UTC).isoformat()
    if queue == WORK and dice.random() < 0.05:
        job["unique"] = {"key": f"u{dice.randrange(50)}"}
    if dice.random() < 0.1:
        job["max_attempts"] = 3
    return job


def item_of(job: Json) -> Item:
    return Item(
        key=job["payload"]["key"],
        queue=job["queue"],
        group=job.get("group", ""),
        unique=job.get("unique", {}).get("key", ""),
        priority=job.get("priority", 0),
        payload=payload_hash(job["payload"]),
        run_at=datetime.fromisoformat(job["run_at"]).timestamp() if "run_at" in job else 0,
    )
