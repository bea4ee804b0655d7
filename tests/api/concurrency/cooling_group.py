"""A group that cools down, in every kind of queue, and how its cool-down passes."""

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase

HOUR = 3600

QUEUES: dict[str, Json] = {
    "unlimited": {},
    "limited": {"max_running_per_group": 3},
    "strict": {"max_running_per_group": 1},
    "fair": {"fair": True},
    "fair and limited": {"fair": True, "max_running_per_group": 2},
}


class CoolingGroup:
    """A group of jobs whose first job has failed with scope `group`."""

    def __init__(self, api: Api, jobs: int = 4, seconds: int = HOUR) -> None:
        self.api = api
        self.jobs = api.enqueue_many(jobs, group="a")
        self.strict = api.get(f"/queues/{api.queue}").get("max_running_per_group") == 1
        self.first = api.claim_one(wait_seconds=20)
        self.response = api.fail(self.first, scope="group", retry_after_seconds=seconds)

    def delivers_nothing(self) -> bool:
        """Returns whether no job of the group is delivered before or after one of another group."""
        other = self.api.enqueue(group="other")
        claimed = self.api.claim_one(max_jobs=10, wait_seconds=20)
        self.api.complete(claimed)
        return bool(claimed["id"] == other["id"]) and not self.api.claim(max_jobs=10)["jobs"]

    def claim_probe(self) -> Json:
        """Claims the half-open probe, and checks that it is the only job that is delivered."""
        probe = self.api.claim_one(max_jobs=10, wait_seconds=20)
        assert probe["group"] == "a"
        assert self.delivers_nothing()
        return probe

    def complete_all(self) -> bool:
        """Completes all jobs. Returns whether none of the group is left."""
        while self.api.counts().keys() & {"ready", "running"}:
            for job in self.api.claim(max_jobs=10, wait_seconds=20)["jobs"]:
                self.api.complete(job)
        return not self.api.get("/jobs", queue=self.api.queue, group="a", state="ready")["items"]


def end_cooldowns(db: TestDatabase) -> None:
    """Lets all cool-downs, and the delays of the jobs that started them, pass."""
    db.execute("UPDATE group_cooldowns SET until = now() - interval '1 millisecond'")
    db.execute("UPDATE jobs SET run_at = now() - interval '1 millisecond' WHERE state = 'scheduled'")
    db.execute("UPDATE config_versions SET number = number + 1")
    wait_until(lambda: db.value("SELECT count(*) FROM jobs WHERE state = 'scheduled' AND run_at < now()") == 0)


def count_cooldowns(db: TestDatabase, api: Api) -> int:
    count: int = db.value(
        "SELECT count(*) FROM group_cooldowns JOIN queues ON lane / 256 = queues.id WHERE name = $1", api.queue
    )
    return count
