"""A large body does not block other requests: it is checked in a thread.

See docs/reliability/faults.md#b6.
"""

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.polls import Background


def expensive_batch() -> bytes:
    """A million values within all limits.

    The error is at the end, so that all values are checked and nothing is stored.
    """
    job = b'{"job_type": "test", "payload": [%s]}' % b",".join([b"0"] * 4000)
    return b'{"jobs": [' + b",".join([job] * 250) + b'], "atomic": true, "atomic": true}'


def test_other_requests_are_served_while_a_large_body_is_checked(
    broker: RunningBroker, api: Api, background: Background
) -> None:
    checked = background.submit(broker.http.post, "/jobs/batch", content=expensive_batch())
    served = 0
    while not checked.done():
        assert api.http.get("/livez").status_code == 200
        served += 1
    assert checked.result().status_code == 422
    assert served > 10
