"""Two processes that learn of each other's jobs by NOTIFY and do not poll.

No third one: it could run a scan and notify no other process.
"""

import pytest

from tests.api_client import Api
from tests.concurrency.processes.wake_ups import WakeUps


class TestNotify(WakeUps):
    @pytest.fixture
    def poller_api(self, second_api: Api) -> Api:
        return second_api
