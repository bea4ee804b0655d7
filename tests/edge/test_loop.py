"""One client's work does not hold up the others (B6): what takes long to check is checked beside the event loop."""

from tests.api import Api
from tests.broker import RunningBroker
from tests.polls import Background


def heavy() -> bytes:
    """A million values within all caps; what is wrong with them comes last, so that all of them are looked at and nothing is stored."""
    job = b'{"job_type": "test", "payload": [%s]}' % b",".join([b"0"] * 4000)
    return b'{"jobs": [' + b",".join([job] * 250) + b'], "atomic": true, "atomic": true}'


def test_others_are_served_while_a_large_body_is_checked(
    broker: RunningBroker, api: Api, background: Background
) -> None:
    checked = background.submit(broker.http.post, "/jobs/batch", content=heavy())
    served = 0
    while not checked.done():
        assert api.http.get("/livez").status_code == 200
        served += 1
    assert checked.result().status_code == 422
    assert served > 10
