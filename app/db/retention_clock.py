"""A clock for retention, which follows a jump ahead of the database's clock only after a day.

A deletion cannot be undone. So if the database's clock is 91 days ahead for a minute, no row may be
deleted as too old. After a jump the retention clock shows the monotonic clock plus the smallest
offset of all samples of the last day.

    database's clock          retention clock
    ----------------          ---------------
    steady, or ahead by less  shows the database's time (if it were a minute late, a unique key for
    than five minutes         ten seconds would last a minute)
    jumps ahead               continues as before the jump; follows the jump when the last sample
                              from before the jump is a day old
    jumps back                follows at once, because that makes no row older
    jumps ahead again, to     as for any jump ahead: rows that were written in the meantime have
    the right time            early timestamps, and are kept for another day

The first sample is the broker's own wall clock, which also protects a broker that starts while the
database's clock is ahead. If instead the wall clock is wrong, and behind, retention is delayed by a
day. Unique keys with `for_seconds` use a retention clock without the wall-clock sample, because a
key that lasts too long rejects work.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

# Seconds. As long as the default retention of Idempotency-Keys, so that no jump shortens it.
JUMP_ACCEPTED_AFTER = 24 * 60 * 60.0
TOLERANCE = 60.0  # seconds; a sample that is ahead of the previous sample by less counts as equal
JUMP = 300.0  # seconds; a smaller lag may be drift: 500 ppm are 43 s a day, on top of TOLERANCE


def _since_boot() -> float:
    """Returns the seconds since boot, including suspended time. If that time did not count, the
    database's clock would seem to jump ahead when a laptop resumes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class _Sample(NamedTuple):
    """`offset` is the difference between the observed clock and the monotonic clock. `observed_at`
    is the time of the last observation with that offset, by the monotonic clock."""

    observed_at: float
    offset: float


class RetentionClock:
    """Shows the time of the observed clock. Follows a jump ahead only after JUMP_ACCEPTED_AFTER.

    Takes its first sample from `wall`, the clock of the broker's machine. If `wall` is None, the
    first call of `observe` supplies the first sample.
    """

    def __init__(
        self, wall: Callable[[], float] | None = time.time, monotonic: Callable[[], float] = _since_boot
    ) -> None:
        self._monotonic = monotonic
        # Offsets ascend from left to right: a new sample removes earlier ones with a larger offset.
        self._samples: deque[_Sample] = deque()
        self._latest = 0.0
        if wall is not None:
            self.observe(wall())

    def observe(self, instant: float) -> None:
        """Records a sample: `instant` is the current time of the observed clock, in seconds since
        1970."""
        observed_at = self._monotonic()
        offset = self._latest = instant - observed_at
        while self._samples and self._samples[-1].offset > offset:
            self._samples.pop()
        if self._samples and offset - self._samples[-1].offset < TOLERANCE:
            offset = self._samples.pop().offset
        self._samples.append(_Sample(observed_at, offset))
        while self._samples[0].observed_at < observed_at - JUMP_ACCEPTED_AFTER:
            self._samples.popleft()

    def now(self) -> datetime:
        """Returns the time that this clock shows."""
        return datetime.fromtimestamp(self._monotonic() + self._latest - self.lag(), UTC)

    def lag(self) -> float:
        """Returns by how many seconds this clock is behind the observed clock. A lag below JUMP
        counts as 0."""
        lag = self._latest - self._samples[0].offset
        return lag if lag >= JUMP else 0.0
