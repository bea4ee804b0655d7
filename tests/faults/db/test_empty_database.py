"""Tests empty the database while a broker uses it.

Emptying holds no lock while it waits for a locked row, and leaves no row behind.
"""

from collections.abc import Callable
from typing import Any

from tests.api_client import Api
from tests.database import TestDatabase
from tests.polls import Background


def test_emptying_holds_no_lock_while_another_transaction_has_a_row_locked(
    api: Api, db: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    api.enqueue_many(3)
    api.fail(api.claim_one(), retryable=False)
    with db.uncommitted("SELECT FROM dead_letters FOR UPDATE"):
        emptied = background.submit(db.empty)
        eventually(lambda: db.value("SELECT count(*) FROM jobs") == 0)
        assert not emptied.done()
    emptied.result(60)
    assert db.value("SELECT count(*) FROM dead_letters") == 0
