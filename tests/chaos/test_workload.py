"""The jobs of a run: equal for equal seeds, with a small share for every feature of the broker."""

from collections import Counter

from tests.api_client import Json
from tests.chaos.options import Options
from tests.chaos.workload import FEATURES, MOVED, batch_sizes, enqueue_mode, jobs_of

INSTANTS = ("run_at", "expires_at")
SENT = {
    "group",
    "unique",
    "priority",
    "max_attempts",
    "depends_on",
    "on_parent_failure",
    "timeout_seconds",
    "delay_seconds",
    *INSTANTS,
}


def sent_by(options: Options) -> list[list[Json]]:
    """Returns the jobs of the first producer, by call."""
    return [jobs_of(options, 0, call, size) for call, size in enumerate(batch_sizes(options, 0))]


def test_same_seed_sends_the_same_jobs_except_for_their_times() -> None:
    first, again, other = ([_without_instants(call) for call in sent_by(Options(seed=seed))] for seed in (7, 7, 8))
    assert first == again
    assert first != other


def _without_instants(jobs: list[Json]) -> list[Json]:
    return [{name: value for name, value in job.items() if name not in INSTANTS} for job in jobs]


def test_every_feature_has_a_small_share_of_the_jobs() -> None:
    jobs = [job for call in sent_by(Options()) for job in call]
    fields = Counter(name for job in jobs for name in job)
    queues = Counter(job["queue"] for job in jobs)
    replaced = sum(job.get("unique", {}).get("on_duplicate") == "replace" for job in jobs)
    shares = {name: fields[name] / len(jobs) for name in SENT} | {
        name: queues[name] / len(jobs) for name in FEATURES if name != MOVED
    }
    assert {name: share for name, share in shares.items() if not 0.0005 < share < 0.2} == {}
    assert replaced


def test_chaos_producers_send_calls_with_a_key_without_a_key_and_by_sql() -> None:
    options = Options()
    ways = Counter(enqueue_mode(options, 0, call) for call in range(1000))
    assert ways["keyed"] > 800
    assert ways["keyless"] > 40
    assert ways["sql"] > 20
