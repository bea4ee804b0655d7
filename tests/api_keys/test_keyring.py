"""How a process knows keys: from its cache, in constant time, without asking the database; and what is stored of a secret."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from app.api_keys.schemas import ApiKeyCreate, ApiKeyCreated
from app.broker import Broker, build_broker
from app.db.pool import Database
from app.db.primary import Connection
from app.errors import DatabaseUnavailable, Unauthenticated
from app.settings import Settings
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database

PEPPERED = QUICK.model_copy(update={"key_pepper": SecretStr("a pepper")})


class CountingDatabase(Database):
    """Counts how often it is asked something."""

    params = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        CountingDatabase.params += 1
        async with super().connection() as connection:
            yield connection


@pytest.fixture(scope="module")
def keys(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "keyring"), loop)
    yield database
    database.close()


class Process:
    """The keys as one process knows them, which does nothing by itself."""

    def __init__(self, settings: Settings, dsn: str, loop: Loop) -> None:
        self._loop = loop
        self.broker_services: Broker = build_broker(settings, dsn)
        loop.run(self.broker_services.infra.db.open())

    def know_the_time(self) -> "Process":
        self._loop.run(self.broker_services.infra.clock.refresh(self.broker_services.infra.db))
        return self

    def create(self, name: str, *scopes: str) -> ApiKeyCreated:
        wanted = ApiKeyCreate(name=name, scopes=list(scopes or ["read"]))
        return self._loop.run(self.broker_services.api_keys.create(wanted))

    def revoke(self, key: ApiKeyCreated) -> None:
        self._loop.run(self.broker_services.api_keys.revoke(key.id))

    def admits(self, key: str | None) -> bool:
        try:
            self._loop.run(self.broker_services.authenticator.admit(None if key is None else f"Bearer {key}"))
        except Unauthenticated:
            return False
        return True

    def write_last_used(self) -> None:
        self._loop.run(self.broker_services.authenticator.write_last_used())

    def close(self) -> None:
        self._loop.run(self.broker_services.infra.db.close())


@pytest.fixture
def process(keys: TestDatabase, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr("app.broker.Database", CountingDatabase)
    keys.execute("DELETE FROM api_keys")
    process = Process(PEPPERED, keys.dsn, loop).know_the_time()
    yield process
    process.close()


def test_a_known_key_is_checked_without_the_database(process: Process) -> None:
    key = process.create("known").key
    assert process.admits(key)
    before = CountingDatabase.params
    assert all(process.admits(key) for _ in range(200))
    assert CountingDatabase.params == before


def test_unknown_keys_make_the_database_asked_a_few_times_a_second_at_most(process: Process) -> None:
    """One look tells whether there is anything new; all who come within the next moment go by it."""
    known = process.create("known").key
    unknown = [*[f"lsk_{number:016x}_{number:064x}" for number in range(500)], known[:-1] + "x", "garbage", None]
    before = CountingDatabase.params
    assert not any(process.admits(key) for key in unknown)
    assert CountingDatabase.params - before < len(unknown) / 10


def test_the_secret_is_compared_in_constant_time_also_for_a_key_that_is_not_there(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return digest(one, other)

    digest = hmac.compare_digest
    key = process.create("known").key
    process.admits(key)
    monkeypatch.setattr("app.api_keys.authenticator.hmac.compare_digest", compare)
    for sent in (key, key[:-64] + "0" * 64, f"lsk_{'0' * 16}_{'0' * 64}"):
        compared.clear()
        process.admits(sent)
        assert {(len(one), len(other)) for one, other in compared} == {(32, 32)}, (
            "macs, of the same length, whatever was sent"
        )


def test_of_a_secret_only_an_hmac_with_the_pepper_is_stored(process: Process, keys: TestDatabase) -> None:
    key = process.create("stored").key
    secret = key.rpartition("_")[2]
    assert keys.value("SELECT mac FROM api_keys") == hmac.digest(b"a pepper", secret.encode(), "sha256")
    assert [
        table
        for table, text in dump(keys).items()
        if secret in text or hashlib.sha256(secret.encode()).hexdigest() in text
    ] == []


def dump(database: TestDatabase) -> dict[str, str]:
    """Everything that the database holds, as text."""
    tables = [row["name"] for row in database.rows("SELECT relid::regclass::text AS name FROM pg_stat_user_tables")]
    assert "api_keys" in tables
    return {table: database.value(f"SELECT string_agg(t::text, ' ') FROM {table} AS t") or "" for table in tables}


def test_with_another_pepper_no_key_is_worth_anything(process: Process, keys: TestDatabase, loop: Loop) -> None:
    key = process.create("peppered").key
    other = Process(QUICK, keys.dsn, loop).know_the_time()
    assert process.admits(key)
    assert not other.admits(key)
    other.close()


def test_revoking_the_last_key_does_not_open_the_broker(process: Process, keys: TestDatabase, loop: Loop) -> None:
    assert process.admits(None), "no key was ever made, and this is loopback"
    key = process.create("only")
    assert not process.admits(None)
    process.revoke(key)
    assert not process.admits(None)
    restarted = Process(PEPPERED, keys.dsn, loop).know_the_time()
    assert not restarted.admits(None)
    restarted.close()


def test_when_a_key_was_used_last_is_written_down(process: Process, keys: TestDatabase) -> None:
    used, unused = process.create("used"), process.create("unused")
    last = "SELECT last_used_at FROM api_keys WHERE id = $1"
    process.write_last_used()
    assert keys.value(last, used.id) is None
    process.admits(used.key)
    process.admits(unused.key[:-1] + "x")
    process.write_last_used()
    first = keys.value(last, used.id)
    assert first is not None
    assert keys.value(last, unused.id) is None, "a wrong secret is no use"
    process.write_last_used()
    assert keys.value(last, used.id) == first
    process.admits(used.key)
    process.write_last_used()
    assert keys.value(last, used.id) >= first


def test_a_process_that_cannot_ask_lets_nobody_in(loop: Loop) -> None:
    """Not even on loopback: there may be keys."""
    process = Process(QUICK, "postgresql://nobody@127.0.0.1:1/nowhere", loop)
    for key in (None, f"lsk_{'0' * 16}_{'0' * 64}"):
        with pytest.raises(DatabaseUnavailable):
            process.admits(key)
    process.close()


def test_who_may_call_is_known_while_the_database_is_away(keys: TestDatabase, loop: Loop) -> None:
    """So that an operator can read the metrics; what needs the database says so itself."""
    process = Process(PEPPERED, keys.dsn, loop).know_the_time()
    key = process.create("operator").key
    assert process.admits(key)
    process.close()
    process.broker_services.infra.versions.invalidate()
    assert process.admits(key)
