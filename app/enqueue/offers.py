"""What a job that comes in can be to somebody who waits for one. Who waits is known to app/leases alone."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.jobs.store import NewJob


class Offer:
    """Jobs on their way into the database, with `rows` as they are to be stored. This one is made to nobody."""

    def __init__(self, rows: Sequence[NewJob]) -> None:
        self.rows = rows

    def stored(self) -> None:
        """They are committed."""

    def failed(self, error: BaseException) -> None:
        """They are not; or, if `error` says so, nobody knows."""


MakeOffer: TypeAlias = Callable[[int, Sequence[NewJob]], Offer]


def no_offer(_lane: int, rows: Sequence[NewJob]) -> Offer:
    return Offer(rows)
