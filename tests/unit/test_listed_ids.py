"""The limit of listed worker ids per API key."""

from app.workers.listed_ids import FORGET_SECONDS, ListedIds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_api_key_has_its_own_limit() -> None:
    listed: ListedIds[str] = ListedIds(2)
    admitted = [listed.try_add(worker_id, key) for key in ("a", "b") for worker_id in ("1", "2", "3", "1")]
    assert admitted == [True, True, False, True] * 2


def test_id_not_seen_for_a_day_frees_its_place() -> None:
    clock = Clock()
    listed: ListedIds[str] = ListedIds(2, clock)
    assert listed.try_add("old", "a")
    assert listed.try_add("busy", "a")
    clock.now = FORGET_SECONDS
    assert listed.try_add("busy", "a")
    assert not listed.try_add("new", "a")
    clock.now += 1
    assert listed.try_add("new", "a")
    assert not listed.try_add("old", "a")
    assert listed.try_add("busy", "a")


def test_number_of_remembered_ids_is_bounded() -> None:
    listed: ListedIds[str] = ListedIds(100)
    assert sum(listed.try_add(str(number), "a") for number in range(100_000)) == 100
