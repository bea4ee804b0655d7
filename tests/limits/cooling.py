"""A group that cools down, in every kind of queue, and how its time passes."""

from tests.api import Api, Json
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


class Cooling:
    """A group of some jobs whose first one has said that its downstream has had enough."""

    def __init__(self, api: Api, jobs: int = 4, seconds: int = HOUR) -> None:
        self.api = api
        self.jobs = api.enqueue_many(jobs, group="a")
        self.strict = api.get(f"/queues/{api.queue}").get("max_running_per_group") == 1
        self.first = api.claim_one(wait_seconds=20)
        self.to_response = api.fail(self.first, scope="group", retry_after_seconds=seconds)

    def hands_out_nothing(self) -> bool:
        """Not even after another group's job, which is decided on later, has been handed out."""
        other = self.api.enqueue(group="other")
        taken = self.api.claim_one(max_jobs=10, wait_seconds=20)
        self.api.complete(taken)
        return bool(taken["id"] == other["id"]) and not self.api.claim(max_jobs=10)["jobs"]

    def probe(self) -> Json:
        """The one that goes first; nobody goes with it."""
        probe = self.api.claim_one(max_jobs=10, wait_seconds=20)
        assert probe["group"] == "a"
        assert self.hands_out_nothing()
        return probe

    def all_done(self) -> bool:
        """Everybody is handed out, in the end."""
        while self.api.counts().keys() & {"ready", "running"}:
            for job in self.api.claim(max_jobs=10, wait_seconds=20)["jobs"]:
                self.api.complete(job)
        return not self.api.get("/jobs", queue=self.api.queue, group="a", state="ready")["items"]


def rest_over(db: TestDatabase) -> None:
    """As if the time had passed, for the groups that rest and for the jobs that were put off with them."""
    db.execute("UPDATE rests SET until = now() - interval '1 millisecond'")
    db.execute("UPDATE jobs SET run_at = now() - interval '1 millisecond' WHERE state = 'scheduled'")
    db.execute("UPDATE versions SET number = number + 1")
    wait_until(lambda: db.value("SELECT count(*) FROM jobs WHERE state = 'scheduled' AND run_at < now()") == 0)


def resting(db: TestDatabase, api: Api) -> int:
    count: int = db.value("SELECT count(*) FROM rests JOIN queues ON lane / 256 = queues.id WHERE name = $1", api.queue)
    return count
