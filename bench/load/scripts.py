"""What producers and workers do, as scripts: one connection each, the next request right after the response."""

from collections.abc import Iterator, Sequence

import msgspec

from bench.client import Requests, Response, Script, UnexpectedResponse
from bench.load.order import QUEUE, batch_body, job_body, mixed_batch_body
from bench.load.timing import Tally


class ClaimedJob(msgspec.Struct):
    """The fields of a claimed job that a worker reads; the body is checked as a whole."""

    id: str
    lease_token: str


class Settled(msgspec.Struct):
    status: str


class Claimed(msgspec.Struct):
    jobs: list[ClaimedJob]
    settled: list[Settled]


class Created(msgspec.Struct):
    created: int


class Results(msgspec.Struct):
    settled: int


_claimed = msgspec.json.Decoder(Claimed)
_results = msgspec.json.Decoder(Results)
_created = msgspec.json.Decoder(Created)


def producer(tally: Tally, requests: Requests, batch: int, *, mixed: bool = False) -> Script:
    if batch == 1:
        request = requests.post("/jobs", job_body())
    else:
        request = requests.post("/jobs/batch", (mixed_batch_body if mixed else batch_body)(batch))
    while not tally.over:
        (yield request).expect(201)
        tally.add(batch)


def filler(remaining_sizes: Iterator[int], requests: Requests) -> Script:
    """Enqueues batches whose sizes it takes from an iterator that all fillers share."""
    for size in remaining_sizes:
        body = (yield requests.post("/jobs/batch", batch_body(size))).expect(201)
        if _created.decode(body).created != size:
            raise UnexpectedResponse(f"not all {size} jobs were created")


def batch_sizes(jobs: int) -> Iterator[int]:
    for first in range(0, jobs, 1000):
        yield min(1000, jobs - first)


def single_worker(tally: Tally, requests: Requests) -> Script:
    """Claims one job, completes it."""
    claim = requests.post("/claim", claim_body(1))
    while jobs := read_claim((yield claim)).jobs:
        for job in jobs:
            (
                yield requests.post(f"/jobs/{job.id}/complete", b'{"lease_token":"%b"}' % job.lease_token.encode())
            ).expect(200)
            tally.add(1)


def batch_worker(tally: Tally, requests: Requests, batch: int) -> Script:
    """Claims a batch, settles it."""
    claim = requests.post("/claim", claim_body(batch))
    while jobs := read_claim((yield claim)).jobs:
        body = (yield requests.post("/settle", b'{"items":[%b]}' % settlements(jobs))).expect(200)
        if _results.decode(body).settled != len(jobs):
            raise UnexpectedResponse(f"not all {len(jobs)} jobs were settled")
        tally.add(len(jobs))


def carrying_worker(tally: Tally, requests: Requests, batch: int) -> Script:
    """Claims a batch and settles the last one in the same call."""
    jobs = read_claim((yield requests.post("/claim", claim_body(batch)))).jobs
    while jobs:
        claim = read_claim((yield requests.post("/claim", claim_body(batch, jobs))))
        tally.add(count_settled(claim.settled, jobs))
        jobs = claim.jobs


def read_claim(response: Response) -> Claimed:
    return _claimed.decode(response.expect(200))


def count_settled(results: Sequence[Settled], sent: Sequence[ClaimedJob]) -> int:
    if [result.status for result in results] != ["settled"] * len(sent):
        raise UnexpectedResponse(f"not all {len(sent)} jobs were settled")
    return len(sent)


def claim_body(batch: int, settle: Sequence[ClaimedJob] = ()) -> bytes:
    carried = b',"settle":[%b]' % settlements(settle) if settle else b""
    return b'{"queues":["%b"],"max_jobs":%d,"worker_id":"bench"%b}' % (QUEUE.encode(), batch, carried)


def settlements(jobs: Sequence[ClaimedJob]) -> bytes:
    return ",".join(
        f'{{"job_id":"{job.id}","lease_token":"{job.lease_token}","outcome":"complete"}}' for job in jobs
    ).encode()
