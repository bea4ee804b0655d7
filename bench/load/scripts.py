"""What producers and workers do, as scripts: one connection each, the next request as soon as the answer is there."""

from collections.abc import Iterator, Sequence

import msgspec

from bench.client import Answer, Requests, Script, WrongAnswer
from bench.load.order import QUEUE, batch_of, one_job
from bench.load.timing import Tally


class Taken(msgspec.Struct):
    """What a worker reads of a claimed job; the body is checked as a whole."""

    id: str
    lease_token: str


class Settled(msgspec.Struct):
    status: str


class Claimed(msgspec.Struct):
    jobs: list[Taken]
    settled: list[Settled]


class Created(msgspec.Struct):
    created: int


class Results(msgspec.Struct):
    settled: int


_claimed = msgspec.json.Decoder(Claimed)
_results = msgspec.json.Decoder(Results)
_created = msgspec.json.Decoder(Created)


def producer(tally: Tally, requests: Requests, batch: int) -> Script:
    request = requests.post("/jobs", one_job()) if batch == 1 else requests.post("/jobs/batch", batch_of(batch))
    while not tally.over:
        (yield request).expect(201)
        tally.add(batch)


def filler(left: Iterator[int], requests: Requests) -> Script:
    """Takes the next size from what is left to fill in, together with others."""
    for size in left:
        body = (yield requests.post("/jobs/batch", batch_of(size))).expect(201)
        if _created.decode(body).created != size:
            raise WrongAnswer(f"not all {size} jobs were created")


def sizes(jobs: int) -> Iterator[int]:
    for first in range(0, jobs, 1000):
        yield min(1000, jobs - first)


def single_worker(tally: Tally, requests: Requests) -> Script:
    """Claims one, completes it."""
    claim = requests.post("/claim", claim_body(1))
    while jobs := read((yield claim)).jobs:
        for job in jobs:
            (
                yield requests.post(f"/jobs/{job.id}/complete", b'{"lease_token":"%b"}' % job.lease_token.encode())
            ).expect(200)
            tally.add(1)


def batch_worker(tally: Tally, requests: Requests, batch: int) -> Script:
    """Claims a batch, settles it."""
    claim = requests.post("/claim", claim_body(batch))
    while jobs := read((yield claim)).jobs:
        body = (yield requests.post("/settle", b'{"items":[%b]}' % settlements(jobs))).expect(200)
        if _results.decode(body).settled != len(jobs):
            raise WrongAnswer(f"not all {len(jobs)} jobs were settled")
        tally.add(len(jobs))


def carrying_worker(tally: Tally, requests: Requests, batch: int) -> Script:
    """Claims a batch and settles the last one in the same call."""
    jobs = read((yield requests.post("/claim", claim_body(batch)))).jobs
    while jobs:
        answer = read((yield requests.post("/claim", claim_body(batch, jobs))))
        tally.add(settled_of(answer.settled, jobs))
        jobs = answer.jobs


def read(answer: Answer) -> Claimed:
    return _claimed.decode(answer.expect(200))


def settled_of(answers: Sequence[Settled], sent: Sequence[Taken]) -> int:
    if [one.status for one in answers] != ["settled"] * len(sent):
        raise WrongAnswer(f"not all {len(sent)} jobs were settled")
    return len(sent)


def claim_body(batch: int, settle: Sequence[Taken] = ()) -> bytes:
    carried = b',"settle":[%b]' % settlements(settle) if settle else b""
    return b'{"queues":["%b"],"max_jobs":%d,"worker_id":"bench"%b}' % (QUEUE.encode(), batch, carried)


def settlements(jobs: Sequence[Taken]) -> bytes:
    return ",".join(
        f'{{"job_id":"{job.id}","lease_token":"{job.lease_token}","outcome":"complete"}}' for job in jobs
    ).encode()
