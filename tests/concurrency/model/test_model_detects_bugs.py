"""The model detects bugs: brokers with one deliberate bug each fail the state machine.

A model that detects nothing proves nothing.
"""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from app.db.queries import Queries, compile_statement
from app.jobs.rows import ClaimedRow
from app.leases import store
from app.leases.caller_claims import CallerClaims
from app.leases.long_poll import LongPoll
from app.locks import store as keys
from app.server.exchange import Client
from tests.concurrency.model.brokers import BrokerPair
from tests.concurrency.model.state_machine import LeaseStateMachine

Bug = Callable[[pytest.MonkeyPatch], None]


def rewrite(queries: Queries, name: str, old: str, new: str) -> Bug:
    def apply(patch: pytest.MonkeyPatch) -> None:
        text = vars(queries)[name].text
        assert old in text, "the statement does not contain the text to replace"
        patch.setitem(vars(queries), name, compile_statement(name, text.replace(old, new), {}))

    return apply


def repeated_claim_claims_again(patch: pytest.MonkeyPatch) -> None:
    """A repeated claim gets other jobs, as if its key were new."""

    async def nothing(*_: object) -> None:
        return None

    patch.setattr(CallerClaims, "_leases_of_receipt", nothing)


def returns_claims_with_a_key(patch: pytest.MonkeyPatch) -> None:
    """Layers 2 and 3 both apply.

    The job is returned because the client disconnected, and replayed by the key.
    """
    original = LongPoll._requeue_if_disconnected

    async def return_always(
        self: LongPoll, rows: list[ClaimedRow], _key: str | None, client: Client
    ) -> list[ClaimedRow]:
        await original(self, rows, None, client)
        return rows

    patch.setattr(LongPoll, "_requeue_if_disconnected", return_always)


# The row of the key is read but not locked.
NO_LOCK = """
SELECT response
FROM deduplication_keys
WHERE lane = :lane AND digest = :digest AND :expires_at::timestamptz IS NOT NULL
"""

BUGS = {
    "a stale token completes": rewrite(
        store.SQL, "complete", " AND jobs.lease_token = input.token AND jobs.settled_as IS NULL", ""
    ),
    "a stale token extends": rewrite(store.SQL, "heartbeat", " AND jobs.lease_token = input.token", ""),
    "lease expiry does not count as a crash": rewrite(
        store.SQL, "requeue", "crashes = locked.crashes", "crashes = jobs.crashes"
    ),
    "a repeated claim claims again": repeated_claim_claims_again,
    "a claim with a key is returned and replayed": returns_claims_with_a_key,
    "claims with one key do not wait for each other": rewrite(
        keys.SQL, "lock_claim_key", keys.SQL.lock_claim_key.text, NO_LOCK
    ),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_model_detects_bug(
    bug: Bug, brokers: BrokerPair, run_settings: settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(
            lambda: LeaseStateMachine(brokers),  # type: ignore[arg-type]
            settings=settings(run_settings, max_examples=100),
        )
