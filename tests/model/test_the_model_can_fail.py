"""A model that finds nothing proves nothing: brokers with one deliberate bug each, put in from outside, are told from sound ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from app.db.queries import Queries
from app.leases import store
from app.leases.long_poll import LongPoll
from app.leases.store import ClaimedRow
from app.locks import store as keys
from app.server.client import Client
from tests.model.brokers import Table
from tests.model.machine import Leases

Bug = Callable[[pytest.MonkeyPatch], None]


def rewritten(statements: Queries, name: str, this: str, that: str) -> Bug:
    def put_in(patch: pytest.MonkeyPatch) -> None:
        statement = statements.all[name]
        assert this in statement.text, "the bug has nowhere to go"
        patch.setitem(statements.all, name, replace(statement, text=statement.text.replace(this, that)))

    return put_in


def claims_anew(patch: pytest.MonkeyPatch) -> None:
    """A repeated claim gets other jobs, as if its key had never been seen."""

    async def nothing(*_: object) -> None:
        return None

    patch.setattr(LongPoll, "_replayed", nothing)


def undoes_what_has_a_key(patch: pytest.MonkeyPatch) -> None:
    """Both layers at once: goes back as the client has left, and is handed out again by the key."""
    sound = LongPoll._delivered

    async def delivered(self: LongPoll, rows: list[ClaimedRow], _key: str | None, client: Client) -> list[ClaimedRow]:
        await sound(self, rows, None, client)
        return rows

    patch.setattr(LongPoll, "_delivered", delivered)


# The row of the key is read, but not held.
NO_LOCK = "SELECT answer FROM keys WHERE lane = $1 AND digest = $2 AND $3::timestamptz IS NOT NULL"

BUGS = {
    "a stale token completes": rewritten(
        store.SQL, "complete", " AND jobs.lease_token = sent.token AND jobs.settled_as IS NULL", ""
    ),
    "a stale token extends": rewritten(store.SQL, "heartbeat", " AND jobs.lease_token = sent.token", ""),
    "expiry does not count": rewritten(store.SQL, "requeue", "crashes = locked.crashes", "crashes = jobs.crashes"),
    "leases of a repeated claim are forgotten": claims_anew,
    "undone and replayed": undoes_what_has_a_key,
    "claims with one key do not wait for each other": rewritten(
        keys.SQL, "lock_claim_key", keys.SQL.lock_claim_key, NO_LOCK
    ),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_is_found(bug: Bug, table: Table, effort: settings, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(lambda: Leases(table), settings=settings(effort, max_examples=100))  # type: ignore[arg-type]
