"""Two processes that hear of each other's jobs through NOTIFY and do not poll. No third one: it could sweep and keep it to itself."""

import pytest

from tests.api import Api
from tests.processes.wake_ups import WakeUps


class TestNotify(WakeUps):
    @pytest.fixture
    def there(self, two: Api) -> Api:
        return two
