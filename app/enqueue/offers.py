"""What an enqueue offers to waiting pollers.

Only app/matching knows the pollers, so it overrides this interface.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.jobs.store import NewJob


class Offer:
    """New jobs before their INSERT, with `rows` as they will be stored. Matches no poller here.

    created -> committed   the INSERT has been committed
    created -> aborted     the INSERT has failed, or its outcome is unknown
    """

    def __init__(self, rows: Sequence[NewJob]) -> None:
        self.rows = rows

    def committed(self) -> None:
        """Called after the commit."""

    def aborted(self, error: BaseException) -> None:
        """Called when the INSERT raises.

        If `error` says `unknown`, the rows may be stored all the same.
        """


MakeOffer: TypeAlias = Callable[[int, Sequence[NewJob]], Offer]


def no_offer(_lane: int, rows: Sequence[NewJob]) -> Offer:
    return Offer(rows)
