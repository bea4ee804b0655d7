"""When the lag of a clock is stored again."""

from app.maintenance.clock_sampler import has_changed
from tests.table import table


@table(
    ("stored", "lag", "changed"),
    [
        (0.0, 0.0, False),
        (0.0, 301.0, True),
        (301.0, 0.0, True),
        (3600.0, 3600.2, False),
        (3600.0, 3661.0, True),
        (3661.0, 3600.0, True),
    ],
)
def test_lag_is_stored_when_it_starts_changes_by_a_minute_or_ends(stored: float, lag: float, changed: bool) -> None:
    assert has_changed(stored, lag) is changed
