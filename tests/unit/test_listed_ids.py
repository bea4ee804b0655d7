"""How many worker ids are listed for each API key."""

from app.workers.listed_ids import FORGET_SECONDS, ListedIds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_key_has_a_limit_of_its_own() -> None:
    listed = ListedIds(2)
    admitted = [listed.admit(worker_id, key) for key in ("a", "b") for worker_id in ("1", "2", "3", "1")]
    assert admitted == [True, True, False, True] * 2


def test_id_that_was_not_seen_for_a_day_makes_room() -> None:
    clock = Clock()
    listed = ListedIds(2, clock)
    assert listed.admit("old", "a")
    assert listed.admit("busy", "a")
    clock.now = FORGET_SECONDS
    assert listed.admit("busy", "a")
    assert not listed.admit("new", "a")
    clock.now += 1
    assert listed.admit("new", "a")
    assert not listed.admit("old", "a")
    assert listed.admit("busy", "a")


def test_memory_is_bounded() -> None:
    listed = ListedIds(100)
    assert sum(listed.admit(str(number), "a") for number in range(100_000)) == 100
