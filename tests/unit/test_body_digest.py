"""Digests of request bodies: equal for bodies with the same meaning, in every release."""

import asyncio
import json

import msgspec
import pytest

from app.db.lanes import digest
from app.enqueue.draft_writer import body_digest
from app.enqueue.schemas import JobCreate, RawBatch

JOBS = [{"job_type": "a", "payload": {"b": [1, 2.50, "ä"], "a": None}}, {"tags": ["x"], "job_type": "b"}]


@pytest.mark.parametrize("body", [{"jobs": JOBS}, {"jobs": JOBS, "atomic": False}, {"atomic": True, "jobs": JOBS[:1]}])
def test_digest_of_a_batch_is_that_of_its_sorted_json(body: dict[str, object]) -> None:
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    batch = msgspec.json.decode(json.dumps(body, indent=1), type=RawBatch)
    assert asyncio.run(body_digest(batch)) == digest(text)


def test_digest_of_a_job_is_that_of_its_sorted_json() -> None:
    job = msgspec.json.decode(json.dumps(JOBS[0]), type=JobCreate)
    text = json.dumps(JOBS[0], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert asyncio.run(body_digest(job)) == digest(text)
