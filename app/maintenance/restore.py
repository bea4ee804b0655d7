"""Ends all leases after an operator has restored the database to an earlier time.

    running -> ready | pending | ...   as if the worker had released the job

The restored database has no record of the jobs that workers claimed and settled after that time.
"""

from app.db.infrastructure import Infrastructure
from app.db.lanes import FIRST_ID
from app.leases import store
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import LeaseEnd
from app.log import log

BATCH_SIZE = 500  # leases per statement
_BEGINNING = (-(2**31), FIRST_ID)  # before the first lane and job


async def end_leases(infra: Infrastructure, lease_ender: LeaseEnder) -> int:
    """Releases every lease, and returns the number of released leases.

    - The attempt is not counted, and the lease token becomes invalid. Between the restored time and
      now, the job may have been settled or delivered to another worker, so the worker that has the
      restored lease must not settle the job.
    - The tokens of expired leases become invalid, too, because workers could still use them to
      settle the jobs.
    - The function can be called again, and while brokers are running.
    """
    after, ended = _BEGINNING, 0
    while rows := await store.unused_tokens(infra.db, after, BATCH_SIZE):
        released = await lease_ender.end([LeaseEnd(row["id"], row["lease_token"], "release") for row in rows])
        ended += len(released)
        after = (rows[-1]["lane"], rows[-1]["id"])
    log.info("leases ended after a restore", count=ended)
    return ended
