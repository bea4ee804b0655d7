"""A broker that asks for keys, apart from the one that all tests share: whoever made a key there would lock the others out."""

from collections.abc import Callable, Iterator

import pytest

from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.contract.arrangements import KEYED
from tests.database import Loop, create_database

Served = Callable[[str], Api]


@pytest.fixture(scope="session")
def keyed(postgres: str, loop: Loop) -> Iterator[Api]:
    """With the key of an administrator."""
    with threaded_broker(QUICK, create_database(postgres, loop, "contract of keys")) as broker:
        made = broker.http.post("/api-keys", json={"name": "admin", "scopes": ["manage", "read", "work", "enqueue"]})
        broker.http.headers["Authorization"] = f"Bearer {made.raise_for_status().json()['key']}"
        yield Api(broker.http, "keyed")


@pytest.fixture
def serving(api: Api, keyed: Api) -> Served:
    """The broker on which an operation, or an example of it, is tried."""
    return lambda name: keyed if name in KEYED else api
