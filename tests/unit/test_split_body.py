"""Large bodies that are decoded chunk by chunk: as if they were decoded as a whole."""

import asyncio
import json
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.enqueue.schemas import RawBatch
from app.errors import MalformedJson, ValidationFailed
from app.http import split_body, strict_json
from app.http.split_body import SplitBodyDecoder
from app.leases.schemas import ClaimJobs, Heartbeat, SettleJobs
from tests.unit.test_strict_json import documents, values

check = partial(strict_json.check, max_values=1_000_000)
decoder = SplitBodyDecoder(RawBatch)


def decode(text: str, chunk_bytes: int) -> list[object] | None:
    """The decoded jobs, with chunks of this size; None if the body is not decoded in chunks.

    The body arrives in pieces of another size.
    """
    data = text.encode()
    pieces = [data[start : start + 13] for start in range(0, len(data), 13)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_body, "CHUNK_BYTES", chunk_bytes)
        batch = asyncio.run(decoder.decode(pieces, check))
    return None if batch is None else [json.loads(bytes(job)) for job in batch.separate_jobs()]


@given(st.lists(values, min_size=1), st.booleans(), st.sampled_from([None, 1]), st.integers(20, 60))
def test_chunks_contain_the_same_jobs_as_the_body(
    jobs: list[object], ascii_only: bool, indent: int | None, chunk_bytes: int
) -> None:
    text = json.dumps({"jobs": jobs, "atomic": False}, ensure_ascii=ascii_only, indent=indent)
    assert decode(text, chunk_bytes) == jobs


@settings(max_examples=1000)
@given(
    st.lists(documents(",", ":") | st.text(alphabet='[]{}":,\\ 1a', max_size=20), max_size=6).map(",".join),
    st.sampled_from(["", ',"atomic":true', ',"jobs":[]', ',"atomic":tru', "}", "]"]),
    st.integers(12, 40),
)
def test_chunks_accept_nothing_that_a_check_of_the_body_rejects(items: str, tail: str, chunk_bytes: int) -> None:
    text = f'{{"jobs":[{items}]{tail}}}'
    jobs = decode(text, chunk_bytes)
    if jobs is not None:
        check(text.encode())
        assert json.loads(text)["jobs"] == jobs


@pytest.mark.parametrize(
    "items",
    ['{"a":1}}{"a":1}', '{"a":1};{"a":1}', '{"a":1},', ',{"a":1}', '{"a":[1}]', '{"a":"1},{"b":2}', '{"a":1}]'],
)
@pytest.mark.parametrize("chunk_bytes", [10, 1000])
def test_malformed_list_is_not_decoded_in_chunks(items: str, chunk_bytes: int) -> None:
    text = f'{{"jobs":[{items}]}}'
    assert decode(text, chunk_bytes) is None
    with pytest.raises((MalformedJson, ValidationFailed)):
        check(text.encode())


@pytest.mark.parametrize("depth", [strict_json.MAX_DEPTH - 2, strict_json.MAX_DEPTH - 1])
def test_nesting_is_limited_as_in_the_whole_body(depth: int) -> None:
    text = json.dumps({"jobs": [1, "deep", 2]}).replace('"deep"', "[" * depth + "]" * depth)
    assert (decode(text, 12) is None) == (depth > strict_json.MAX_DEPTH - 2)


def test_no_chunk_is_much_larger_than_the_limit() -> None:
    """Payloads that contain lists of objects, as the jobs themselves are."""
    jobs = [{"job_type": "test", "payload": [{"n": n}, {"n": n}] * 20, "tags": []} for n in range(2000)]
    splitter = split_body.Splitter([json.dumps({"jobs": jobs}).encode()], decoder._head)
    assert max(map(len, splitter.chunks())) < 2 * split_body.CHUNK_BYTES
    assert splitter.outside == b'{"jobs": []}'


def test_item_may_be_larger_than_a_chunk() -> None:
    jobs = ["x", "y" * 20 * split_body.CHUNK_BYTES, [{}] * split_body.CHUNK_BYTES, "z"]
    assert decode(json.dumps({"jobs": jobs}), split_body.CHUNK_BYTES) == jobs


def test_members_before_the_list_may_be_lists() -> None:
    data = json.dumps({"queues": ["a", "settle"], "settle": [], "max_jobs": 3}).replace("[]", "[ ]").encode()
    assert asyncio.run(SplitBodyDecoder(ClaimJobs).decode([data], check)) == msgspec.json.decode(data, type=ClaimJobs)


@pytest.mark.parametrize(("kind", "name"), [(SettleJobs, "items"), (ClaimJobs, "settle"), (Heartbeat, "leases")])
def test_items_of_each_batch_are_decoded(kind: type, name: str) -> None:
    item: dict[str, object] = {"job_id": "01234567-89ab-7def-8123-0123456789ab", "lease_token": "t"}
    item |= {} if kind is Heartbeat else {"outcome": "complete", "result": [{"a": 1}, {"b": 2}]}
    others = {} if kind is SettleJobs else {"worker_id": "w"}
    data = json.dumps({**others, name: [item] * 500}).encode()
    assert asyncio.run(SplitBodyDecoder(kind).decode([data], check)) == msgspec.json.decode(data, type=kind)
