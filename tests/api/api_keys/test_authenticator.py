"""Authentication from the cache: in constant time, without database reads; and the stored form of a
secret.
"""

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from app.api_keys.schemas import ApiKeyCreate, ApiKeyCreated
from app.broker import Broker, build_broker
from app.db.checkout import Checkout
from app.db.pool import AutocommitConnection, Database
from app.errors import DatabaseUnavailable, Unauthenticated
from app.events import ConfigNotified
from app.settings import Settings
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database

PEPPERED = TEST_SETTINGS.model_copy(update={"key_pepper": SecretStr("a pepper")})


class CountingDatabase(Database):
    """Counts the acquired connections."""

    connection_count = 0

    def checkout(self) -> Checkout:
        CountingDatabase.connection_count += 1
        return super().checkout()

    def autocommit(self) -> AutocommitConnection:
        CountingDatabase.connection_count += 1
        return super().autocommit()


@pytest.fixture(scope="module")
def key_db(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "authenticator"), loop)
    yield database
    database.close()


class Process:
    """The authenticator of one process, without background services."""

    def __init__(self, settings: Settings, dsn: str, loop: Loop) -> None:
        self._loop = loop
        self.broker_services: Broker = build_broker(settings, dsn)
        loop.run(self.broker_services.infra.db.open())

    def refresh_clock(self) -> "Process":
        self._loop.run(self.broker_services.infra.clock.refresh(self.broker_services.infra.db))
        return self

    def create(self, name: str, *scopes: str) -> ApiKeyCreated:
        request = ApiKeyCreate(name=name, scopes=list(scopes or ["read"]))
        return self._loop.run(self.broker_services.api_keys.create(request, "test"))

    def revoke(self, key: ApiKeyCreated) -> None:
        self._loop.run(self.broker_services.api_keys.revoke(key.id, "test"))

    def accepts(self, key: str | None) -> bool:
        try:
            self._loop.run(self.broker_services.authenticator.authenticate(None if key is None else f"Bearer {key}"))
        except Unauthenticated:
            return False
        return True

    def write_last_used(self) -> None:
        self._loop.run(self.broker_services.authenticator.write_last_used())

    def close(self) -> None:
        self._loop.run(self.broker_services.infra.db.close())


@pytest.fixture
def process(key_db: TestDatabase, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr("app.broker.Database", CountingDatabase)
    key_db.execute("DELETE FROM api_keys")
    process = Process(PEPPERED, key_db.dsn, loop).refresh_clock()
    yield process
    process.close()


def test_cached_key_is_authenticated_without_the_database(process: Process) -> None:
    """On a slow machine a few calls check the configuration versions, which are 250 ms fresh."""
    key = process.create("known").key
    assert process.accepts(key)
    before = CountingDatabase.connection_count
    assert all(process.accepts(key) for _ in range(200))
    assert CountingDatabase.connection_count - before < 200 / 10


def test_unknown_keys_cause_only_a_few_database_reads_a_second(process: Process) -> None:
    """One reload finds out whether there are new keys; calls within the next moment share its
    result.
    """
    known = process.create("known").key
    unknown = [*[f"lsk_{number:016x}_{number:064x}" for number in range(500)], known[:-1] + "x", "garbage", None]
    before = CountingDatabase.connection_count
    assert not any(process.accepts(key) for key in unknown)
    assert CountingDatabase.connection_count - before < len(unknown) / 10


def test_secret_is_compared_in_constant_time_even_for_an_unknown_key(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: Any, right: Any) -> bool:
        compared.append((left, right))
        return digest(left, right)

    digest = hmac.compare_digest
    key = process.create("known").key
    process.accepts(key)
    monkeypatch.setattr("app.api_keys.authenticator.hmac.compare_digest", compare)
    for text in (key, key[:-64] + "0" * 64, f"lsk_{'0' * 16}_{'0' * 64}"):
        compared.clear()
        process.accepts(text)
        assert {(len(left), len(right)) for left, right in compared} == {(32, 32)}, (
            "MACs of equal length, whatever was sent"
        )


def test_only_a_peppered_hmac_of_the_secret_is_stored(process: Process, key_db: TestDatabase) -> None:
    key = process.create("stored").key
    secret = key.rpartition("_")[2]
    assert key_db.value("SELECT mac FROM api_keys") == hmac.digest(b"a pepper", secret.encode(), "sha256")
    assert [
        table
        for table, text in dump(key_db).items()
        if secret in text or hashlib.sha256(secret.encode()).hexdigest() in text
    ] == []


def dump(database: TestDatabase) -> dict[str, str]:
    """The contents of all tables, as text."""
    tables = [row["name"] for row in database.rows("SELECT relid::regclass::text AS name FROM pg_stat_user_tables")]
    assert "api_keys" in tables
    return {table: database.value(f"SELECT string_agg(t::text, ' ') FROM {table} AS t") or "" for table in tables}


def test_keys_are_invalid_with_another_pepper(process: Process, key_db: TestDatabase, loop: Loop) -> None:
    key = process.create("peppered").key
    other = Process(TEST_SETTINGS, key_db.dsn, loop).refresh_clock()
    assert process.accepts(key)
    assert not other.accepts(key)
    other.close()


def test_revoking_the_last_key_does_not_allow_anonymous_callers(
    process: Process, key_db: TestDatabase, loop: Loop
) -> None:
    assert process.accepts(None), "no key was ever created, and this is loopback"
    key = process.create("only")
    assert not process.accepts(None)
    process.revoke(key)
    assert not process.accepts(None)
    restarted = Process(PEPPERED, key_db.dsn, loop).refresh_clock()
    assert not restarted.accepts(None)
    restarted.close()


def test_last_use_of_a_key_is_written_to_the_database(process: Process, key_db: TestDatabase) -> None:
    used, unused = process.create("used"), process.create("unused")
    last = "SELECT last_used_at FROM api_keys WHERE id = $1"
    process.write_last_used()
    assert key_db.value(last, used.id) is None
    process.accepts(used.key)
    process.accepts(unused.key[:-1] + "x")
    process.write_last_used()
    first = key_db.value(last, used.id)
    assert first is not None
    assert key_db.value(last, unused.id) is None, "a wrong secret does not count as use"
    process.write_last_used()
    assert key_db.value(last, used.id) == first
    process.accepts(used.key)
    process.write_last_used()
    assert key_db.value(last, used.id) >= first


def test_process_that_never_loaded_the_keys_rejects_every_caller(loop: Loop) -> None:
    """Even on loopback, because keys may exist."""
    process = Process(TEST_SETTINGS, "postgresql://nobody@127.0.0.1:1/nowhere", loop)
    for key in (None, f"lsk_{'0' * 16}_{'0' * 64}"):
        with pytest.raises(DatabaseUnavailable):
            process.accepts(key)
    process.close()


def test_cached_keys_are_authenticated_while_the_database_is_down(key_db: TestDatabase, loop: Loop) -> None:
    """An operator can still read the metrics; operations that need the database report the outage
    themselves.
    """
    process = Process(PEPPERED, key_db.dsn, loop).refresh_clock()
    key = process.create("operator").key
    assert process.accepts(key)
    process.close()
    process.broker_services.events.publish(ConfigNotified())
    assert process.accepts(key)
