"""Lanes, and ids that carry them. A lane is the shard key: `queue_id * 256 + n`; whoever has a job's id has its lane."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b, sha256
from operator import itemgetter
from struct import Struct, unpack
from typing import TypeVar
from uuid import UUID

from asyncpg.pgproto import pgproto

T = TypeVar("T")

LANES_PER_QUEUE = 256
KEY_LANES = 256  # lanes 0..255 belong to no queue: queue ids start at 1

_LANE_BITS = 24
_RANDOM_BITS = 38
_LANE_MASK = (1 << _LANE_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_halves = Struct(">QQ").pack
_first = itemgetter(0)


def lane_of(job_id: UUID) -> int:
    """Any UUID has some lane; a foreign one simply finds no job there."""
    return (job_id.int >> _RANDOM_BITS) & _LANE_MASK


def queue_id_of(lane: int) -> int:
    return lane // LANES_PER_QUEUE


def lanes_of(queue_id: int, lanes: int) -> range:
    return range(queue_id * LANES_PER_QUEUE, queue_id * LANES_PER_QUEUE + lanes)


def queue_lock_id(queue_id: int) -> int:
    """Who counts what waits in a queue holds a gate of its own: claims and turns, which hold those of the lanes, need not wait for him."""
    return -queue_id


def caller_lock_id(name: str) -> int:
    """Who counts the leases of a caller holds this gate, beyond those of the queues. Callers that share one wait for each other."""
    return -(1 << 20) - digest("caller", name).int % (1 << 20)


def created_at(job_id: UUID) -> datetime:
    """An id is minted when its job is, on the database's clock, so no row stores the instant again."""
    return _instant(job_id.int >> 80)


@lru_cache(maxsize=10_000)
def _instant(milliseconds: int) -> datetime:
    """Remembered, as the jobs of a batch are of one or two milliseconds."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def first_id_at(instant: datetime) -> UUID:
    """The smallest id of that millisecond: a bound for time filters that the index on ids can use."""
    return UUID(int=max(0, _milliseconds(instant)) << 80)


def digest(*parts: str) -> UUID:
    """128 bits that stand for the parts. A separator no part can hold keeps ("a", "bc") apart from ("ab", "c")."""
    return UUID(bytes=blake2b("\x1f".join(parts).encode(), digest_size=16).digest())


def shared_digest(*parts: str) -> UUID:
    """The same for what SQL must reckon too (longshore_enqueue): Postgres has sha256 and no blake2b."""
    return UUID(bytes=sha256("\x1f".join(parts).encode()).digest()[:16])


def lane_of_group(group: str, lanes: int) -> int:
    """Which of n lanes a group lives in; from the first four bytes, which SQL can reckon with."""
    return (shared_digest(group).int >> 96) % lanes


def lane_of_key(key: UUID, lanes: int) -> int:
    """Which of n lanes a key falls on: the same in every process and every release."""
    return key.int % lanes


def by_lane(things: Iterable[T], job_id: Callable[[T], UUID]) -> dict[int, list[T]]:
    """Lanes in their order and ids in theirs: that is the order of locks. Numbers are compared ten times faster than UUIDs."""
    lanes: dict[int, list[T]] = {}
    for number, thing in sorted([(job_id(thing).int, thing) for thing in things], key=_first):
        lanes.setdefault((number >> _RANDOM_BITS) & _LANE_MASK, []).append(thing)
    return dict(sorted(lanes.items()))


class JobIdGenerator:
    """UUIDv7 with a 12-bit counter below the millisecond (monotonic within a process), then the lane, then 38 random bits."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._tick = 0
        self._rng = _rng()

    def __call__(self, lane: int) -> UUID:
        return self.several([lane])[0]

    def several(self, lanes: Sequence[int]) -> list[UUID]:
        """One for each lane, in this order. One look at the clock serves all."""
        first = max(_milliseconds(self._now()) << 12, self._tick + 1)
        self._tick = first + len(lanes) - 1
        return [_job_id(tick, lane, next(self._rng)) for tick, lane in enumerate(lanes, first)]


def _rng() -> Iterator[int]:
    """Numbers of 64 random bits, fetched many at a time: each call of the operating system takes some microseconds."""
    while True:
        yield from unpack(">512Q", secrets.token_bytes(8 * 512))


def _job_id(tick: int, lane: int, die: int) -> UUID:
    """The driver's own kind of UUID, which is one of Python's too: made, compared and sent in a fifth of the time."""
    upper = (tick >> 12) << 16 | 0x7 << 12 | tick & 0xFFF
    return pgproto.UUID(_halves(upper, 0b10 << 62 | lane << _RANDOM_BITS | die >> 64 - _RANDOM_BITS))


def _milliseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MILLISECOND
