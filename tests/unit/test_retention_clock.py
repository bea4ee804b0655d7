"""The clock by which rows count as old follows a jump ahead only after a day."""

from app.db.retention_clock import BELIEVED_AFTER, RetentionClock

HOUR, DAY = 3600, 86400
WALL = 1_800_000_000.0

Steps = list[tuple[float, float]]

# (hours that pass, by how many hours the database's clock is then off the right time), and by how many the retention clock is.
STORIES: dict[str, tuple[Steps, float]] = {
    "steady": ([(1, 0), (30, 0), (1, 0)], 0),
    "slewed by seconds": ([(1, 0), (1, 0.01), (1, -0.01)], -0.01),
    "four minutes ahead": ([(1, 0), (1, 4 / 60)], 0.067),
    "half a minute ahead when the broker starts": ([(0, 0.5 / 60)], 0.008),
    "91 days ahead": ([(1, 0), (1, 91 * 24)], 0),
    "91 days ahead for a minute": ([(1, 0), (1, 91 * 24), (1 / 60, 0)], 0),
    "ahead, and ahead again": ([(1, 0), (1, 24), (20, 48), (3, 48)], 0),
    "a day ahead, believed after a day": ([(1, 0), (1, 24), (23, 24), (1.1, 24)], 24),
    "a month ahead, believed after a day step by step": ([(1, 0), *[(1, 720)] * 25], 720),
    "back": ([(1, 0), (1, -24)], -24),
    "back for a minute": ([(1, 0), (1, -24), (1 / 60, 0)], -24),
    "back for a minute, a day ago": ([(1, 0), (1, -24), (1 / 60, 0), (25, 0)], 0),
    "ahead when the broker starts": ([(0, 91 * 24)], 0),
    "ahead when the broker starts, and for a day": ([(0, 24), *[(1, 24)] * 25], 24),
    "behind when the broker starts": ([(0, -24)], -24),
}


def off_after(steps: Steps) -> float:
    """Hours by which the retention clock is off the right time at the end."""
    elapsed = [0.0]
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    for hours, off in steps:
        elapsed[0] += hours * HOUR
        clock.observe(WALL + elapsed[0] + off * HOUR)
    return (clock.now().timestamp() - WALL - elapsed[0]) / HOUR


def test_follows_a_jump_ahead_after_a_day_and_a_jump_back_at_once() -> None:
    found = {name: round(off_after(steps), 3) for name, (steps, _) in STORIES.items()}
    assert found == {name: expected for name, (_, expected) in STORIES.items()}


def test_advances_with_the_monotonic_clock_between_samples() -> None:
    elapsed = [0.0]
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    before = clock.now()
    elapsed[0] = 90.0
    assert (clock.now() - before).total_seconds() == 90


def test_lag_is_how_far_it_is_behind_the_database_until_it_follows() -> None:
    elapsed, lags = [0.0], []
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    for at, off in ((0, 30), (10, 0), (20, DAY), (30, DAY), (BELIEVED_AFTER + 40, DAY)):
        elapsed[0] = at
        clock.observe(WALL + at + off)
        lags.append(clock.lag())
    assert lags == [0, 0, DAY, DAY, 0]


def test_a_clock_that_drifts_for_months_is_no_jump_and_takes_no_memory() -> None:
    elapsed, lags = [0.0], set()
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    for minute in range(100 * 24 * 60):
        elapsed[0] = minute * 60.0
        clock.observe(WALL + elapsed[0] * 1.0005)
        lags.add(clock.lag())
    assert lags == {0}
    assert len(clock._samples) < 5
