"""For an operator who has brought the database back to an earlier time: what workers were told since then is not known here any more."""

from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.leases import store
from app.leases.retry_decision import LeaseEnd
from app.leases.settle import SettlementService
from app.log import log

BATCH = 500
_FIRST = (-(2**31), UUID(int=0))


async def end_leases(infra: Infrastructure, settlements: SettlementService) -> int:
    """Every lease, as if its worker had released it: the attempt is given back, and the token is used up. In the time that is gone the
    job may have been settled, or handed to somebody else; a holder of that time must not have the last word now. Tokens of leases
    that had run out could still settle late, so they go too. Safe to repeat, and beside brokers that serve."""
    after, ended = _FIRST, 0
    while rows := await store.live_tokens(infra.db, after, BATCH):
        ended += len(await settlements.end_leases([LeaseEnd(row["id"], row["lease_token"], "release") for row in rows]))
        after = (rows[-1]["lane"], rows[-1]["id"])
    log.info("leases ended after a restore", count=ended)
    return ended
