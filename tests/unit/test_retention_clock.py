"""The retention clock, which decides when rows are old, follows a jump ahead only after a day."""

from app.db.retention_clock import JUMP_ACCEPTED_AFTER, RetentionClock

HOUR, DAY = 3600, 86400
WALL = 1_800_000_000.0

Steps = list[tuple[float, float]]

# Steps (hours that pass, error of the database's clock in hours), and the error of the retention
# clock.
CASES: dict[str, tuple[Steps, float]] = {
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


def error_after(steps: Steps) -> float:
    """Returns the error of the retention clock in hours after the steps."""
    elapsed = [0.0]
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    for hours, error in steps:
        elapsed[0] += hours * HOUR
        clock.observe(WALL + elapsed[0] + error * HOUR)
    return (clock.now().timestamp() - WALL - elapsed[0]) / HOUR


def test_clock_follows_a_jump_ahead_after_a_day_and_a_jump_back_at_once() -> None:
    errors = {name: round(error_after(steps), 3) for name, (steps, _) in CASES.items()}
    assert errors == {name: expected for name, (_, expected) in CASES.items()}


def test_clock_advances_with_the_monotonic_clock_between_samples() -> None:
    elapsed = [0.0]
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    before = clock.now()
    elapsed[0] = 90.0
    assert (clock.now() - before).total_seconds() == 90


def test_lag_is_the_distance_to_the_database_clock_until_it_is_followed() -> None:
    elapsed, lags = [0.0], []
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    for seconds, error in ((0, 30), (10, 0), (20, DAY), (30, DAY), (JUMP_ACCEPTED_AFTER + 40, DAY)):
        elapsed[0] = seconds
        clock.observe(WALL + seconds + error)
        lags.append(clock.lag())
    assert lags == [0, 0, DAY, DAY, 0]


def test_months_of_drift_are_no_jump_and_need_no_memory() -> None:
    elapsed, lags = [0.0], set()
    clock = RetentionClock(wall=lambda: WALL, monotonic=lambda: elapsed[0])
    for minute in range(100 * 24 * 60):
        elapsed[0] = minute * 60.0
        clock.observe(WALL + elapsed[0] * 1.0005)
        lags.add(clock.lag())
    assert lags == {0}
    assert len(clock._samples) < 5
