"""What workers ask for."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Request, Response

from app.errors import BatchTooLarge, LeaseLost, MalformedJson, NotFound, PayloadTooLarge, ValidationFailed
from app.http.authentication import AccessDep
from app.http.dependencies import service
from app.http.fast_routes import fast_route
from app.http.headers import IdempotencyKey
from app.http.operation import WORK, operation
from app.http.request_body import body, json_response
from app.leases.heartbeat import HeartbeatService
from app.leases.long_poll import LongPoll
from app.leases.schemas import (
    ClaimAnswer,
    ClaimJobs,
    Complete,
    Fail,
    Heartbeat,
    HeartbeatAnswer,
    LeaseBeat,
    LeaseStatus,
    Outcome,
    Release,
    SettleAnswer,
    SettleJobs,
    Settlement,
    SettleResult,
    Snooze,
)
from app.leases.settle import SettlementService
from app.server.client import client_of

router = APIRouter(tags=["leases"])

_BAD = (MalformedJson, PayloadTooLarge, ValidationFailed)
SettlementServiceDep = Annotated[SettlementService, service(SettlementService)]


@fast_route(router, "/claim", **operation(ClaimAnswer, BatchTooLarge, *_BAD, takes=ClaimJobs, to=WORK))
async def claim_jobs(
    request: Request,
    claim: Annotated[ClaimJobs, body(ClaimJobs, limit="max_batch_bytes", nul_in_text=True)],
    long_poll: Annotated[LongPoll, service(LongPoll)],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Hands out jobs under a lease; waits up to `wait_seconds` for one to come.

    With an `Idempotency-Key` a claim whose answer was lost can be repeated: it gives the leases of the first call that still
    live, with the same tokens. A claim that carries settlements never waits.
    """
    result = await long_poll.claim(claim, idempotency_key, client_of(request), access)
    return json_response(result, headers={"Cache-Control": "no-store"})


@fast_route(router, "/heartbeat", **operation(HeartbeatAnswer, BatchTooLarge, *_BAD, takes=Heartbeat, to=WORK))
async def heartbeat_leases(
    beat: Annotated[Heartbeat, body(Heartbeat, limit="max_batch_bytes")],
    heartbeats: Annotated[HeartbeatService, service(HeartbeatService)],
    access: AccessDep,
) -> Response:
    """Extends many leases at once, and tells which are lost or to be cancelled. One lost lease never fails the call.

    With `holds_all: true` the list is all that the worker holds: leases that it misses twice in a row go back to ready.
    """
    return json_response(await heartbeats.extend(beat, access))


@fast_route(router, "/settle", **operation(SettleAnswer, BatchTooLarge, *_BAD, takes=SettleJobs, to=WORK))
async def settle_jobs(
    settle: Annotated[SettleJobs, body(SettleJobs, limit="max_batch_bytes", nul_in_text=True)],
    settlements: SettlementServiceDep,
    access: AccessDep,
) -> Response:
    """Ends many leases at once, each by its own outcome. A lost one never fails the others."""
    results = await settlements.settle(settle.items, access)
    lost = sum(result.status in ("lease_lost", "not_found") for result in results)
    return json_response(SettleAnswer(results=results, settled=len(results) - lost, lost=lost))


@fast_route(
    router, "/jobs/{job_id}/heartbeat", **operation(LeaseStatus, NotFound, LeaseLost, *_BAD, takes=LeaseBeat, to=WORK)
)
async def heartbeat_job(
    job_id: UUID,
    beat: Annotated[LeaseBeat, body(LeaseBeat)],
    heartbeats: Annotated[HeartbeatService, service(HeartbeatService)],
) -> Response:
    """Extends one lease; keeps progress and checkpoint."""
    return json_response(await heartbeats.extend_one(job_id, beat))


@fast_route(
    router, "/jobs/{job_id}/complete", **operation(SettleResult, NotFound, LeaseLost, *_BAD, takes=Complete, to=WORK)
)
async def complete_job(
    job_id: UUID, settlement: Annotated[Complete, body(Complete)], settlements: SettlementServiceDep
) -> Response:
    """The work is done. Repeating the call is safe: the answer is then `already_settled`."""
    item = Settlement(
        job_id=job_id, lease_token=settlement.lease_token, outcome=Outcome.COMPLETE, result=settlement.result
    )
    return await _settled(settlements, item)


@fast_route(router, "/jobs/{job_id}/fail", **operation(SettleResult, NotFound, LeaseLost, *_BAD, takes=Fail, to=WORK))
async def fail_job(
    job_id: UUID, settlement: Annotated[Fail, body(Fail, nul_in_text=True)], settlements: SettlementServiceDep
) -> Response:
    """The work failed: it is tried again after a back-off, or is dead when its attempts are used up or it is not retryable."""
    item = Settlement(
        job_id=job_id,
        lease_token=settlement.lease_token,
        outcome=Outcome.FAIL,
        error=settlement.error,
        retryable=settlement.retryable,
        retry_after_seconds=settlement.retry_after_seconds,
        scope=settlement.scope,
    )
    return await _settled(settlements, item)


@fast_route(
    router, "/jobs/{job_id}/snooze", **operation(SettleResult, NotFound, LeaseLost, *_BAD, takes=Snooze, to=WORK)
)
async def snooze_job(
    job_id: UUID, settlement: Annotated[Snooze, body(Snooze)], settlements: SettlementServiceDep
) -> Response:
    """Not now: again in `delay_seconds`. The attempt is given back."""
    item = Settlement(
        job_id=job_id,
        lease_token=settlement.lease_token,
        outcome=Outcome.SNOOZE,
        delay_seconds=settlement.delay_seconds,
        checkpoint=settlement.checkpoint,
    )
    return await _settled(settlements, item)


@fast_route(
    router, "/jobs/{job_id}/release", **operation(SettleResult, NotFound, LeaseLost, *_BAD, takes=Release, to=WORK)
)
async def release_job(
    job_id: UUID, settlement: Annotated[Release, body(Release)], settlements: SettlementServiceDep
) -> Response:
    """Gives the job back: ready now, for anybody. The attempt is given back."""
    return await _settled(
        settlements, Settlement(job_id=job_id, lease_token=settlement.lease_token, outcome=Outcome.RELEASE)
    )


async def _settled(settlements: SettlementService, item: Settlement) -> Response:
    return json_response(await settlements.settle_one(item))
