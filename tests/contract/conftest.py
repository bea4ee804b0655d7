"""A broker with API keys, apart from the shared one.

The first key created on the shared broker would lock out all other tests.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.example_setup import KEY_EXAMPLES
from tests.database import Loop, create_database

ApiFor = Callable[[str], Api]


@pytest.fixture(scope="session")
def keyed_api(postgres: str, loop: Loop) -> Iterator[Api]:
    """A client of that broker, with the key of an administrator."""
    with threaded_broker(TEST_SETTINGS, create_database(postgres, loop, "contract of keys")) as broker:
        created = broker.http.post("/api-keys", json={"name": "admin", "scopes": ["manage", "read", "work", "enqueue"]})
        broker.http.headers["Authorization"] = f"Bearer {created.raise_for_status().json()['key']}"
        yield Api(broker.http, "keyed")


@pytest.fixture
def api_for(api: Api, keyed_api: Api) -> ApiFor:
    """Returns the client for an operation or an example: with keys if it is about keys."""
    return lambda name: keyed_api if name in KEY_EXAMPLES else api
