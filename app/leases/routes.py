"""HTTP routes of workers: claim, heartbeat, settle."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Request, Response

from app.errors import BatchTooLarge, LeaseLost, MalformedJson, NotFound, PayloadTooLarge, ValidationFailed
from app.http.bodies import body, json_response
from app.http.dispatch import AccessDep, fast_route, service
from app.http.headers import IdempotencyKey
from app.http.large_response import list_response
from app.http.operation import WORK, operation
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
from app.leases.to_response import encode_claim
from app.server.exchange import get_client

router = APIRouter(tags=["leases"])

_INVALID_BODY = (MalformedJson, PayloadTooLarge, ValidationFailed)
_NO_STORE = (("Cache-Control", "no-store"),)
SettlementServiceDep = Annotated[SettlementService, service("settlements")]


@fast_route(router, "/claim", **operation(ClaimAnswer, BatchTooLarge, *_INVALID_BODY, body=ClaimJobs, scopes=WORK))
async def claim_jobs(
    request: Request,
    claim: Annotated[ClaimJobs, body(ClaimJobs, limit_name="max_batch_bytes", allow_nul=True)],
    long_poll: Annotated[LongPoll, service("long_poll")],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Claims jobs, each under a lease. If no job is ready, waits up to `wait_seconds` for one.

    With an `Idempotency-Key`, a claim whose response was lost can be repeated. The repeated claim
    returns the leases of the first call that are still live, with the same tokens.

    A claim that carries settlements (`settle`) commits them first. Such a claim waits for jobs only
    with `wait_after_settle: true`: then one request per job suffices. If the response is lost, the
    settlements are stored anyway, and repeating them gives `already_settled`.
    """
    result = await long_poll.poll(claim, idempotency_key, get_client(request), access)
    return list_response(await encode_claim(result), _NO_STORE)


@fast_route(
    router, "/heartbeat", **operation(HeartbeatAnswer, BatchTooLarge, *_INVALID_BODY, body=Heartbeat, scopes=WORK)
)
async def heartbeat_leases(
    heartbeat: Annotated[Heartbeat, body(Heartbeat, limit_name="max_batch_bytes")],
    heartbeats: Annotated[HeartbeatService, service("heartbeats")],
    access: AccessDep,
) -> Response:
    """Extends many leases, and reports which leases are lost and which runs should be cancelled.

    A lost lease does not fail the call. `holds_all: true` says that the list is complete: if two
    such heartbeats in a row do not list a lease of this worker, its job is requeued.
    """
    return json_response(await heartbeats.extend(heartbeat, access))


@fast_route(router, "/settle", **operation(SettleAnswer, BatchTooLarge, *_INVALID_BODY, body=SettleJobs, scopes=WORK))
async def settle_jobs(
    settle: Annotated[SettleJobs, body(SettleJobs, limit_name="max_batch_bytes", allow_nul=True)],
    settlements: SettlementServiceDep,
    access: AccessDep,
) -> Response:
    """Settles many leases, each with an outcome of its own.

    A lost lease does not fail the other settlements.
    """
    results = await settlements.settle(settle.items, access)
    statuses = [result.status for result in results]
    lost = statuses.count("lease_lost") + statuses.count("not_found")
    return json_response(SettleAnswer(results=results, settled=len(results) - lost, lost=lost))


@fast_route(
    router,
    "/jobs/{job_id}/heartbeat",
    **operation(LeaseStatus, NotFound, LeaseLost, *_INVALID_BODY, body=LeaseBeat, scopes=WORK),
)
async def heartbeat_job(
    job_id: UUID,
    heartbeat: Annotated[LeaseBeat, body(LeaseBeat)],
    heartbeats: Annotated[HeartbeatService, service("heartbeats")],
) -> Response:
    """Extends one lease and stores its progress and checkpoint."""
    return json_response(await heartbeats.extend_one(job_id, heartbeat))


@fast_route(
    router,
    "/jobs/{job_id}/complete",
    **operation(SettleResult, NotFound, LeaseLost, *_INVALID_BODY, body=Complete, scopes=WORK),
)
async def complete_job(
    job_id: UUID, settlement: Annotated[Complete, body(Complete)], settlements: SettlementServiceDep
) -> Response:
    """Completes a job. Repeating the call is safe: the status is then `already_settled`."""
    item = Settlement(
        job_id=job_id, lease_token=settlement.lease_token, outcome=Outcome.COMPLETE, result=settlement.result
    )
    return await _settle_one(settlements, item)


@fast_route(
    router,
    "/jobs/{job_id}/fail",
    **operation(SettleResult, NotFound, LeaseLost, *_INVALID_BODY, body=Fail, scopes=WORK),
)
async def fail_job(
    job_id: UUID, settlement: Annotated[Fail, body(Fail, allow_nul=True)], settlements: SettlementServiceDep
) -> Response:
    """Fails a job. The job is retried after a back-off.

    The job becomes dead instead if its attempts are exhausted or the failure is not retryable.
    """
    item = Settlement(
        job_id=job_id,
        lease_token=settlement.lease_token,
        outcome=Outcome.FAIL,
        error=settlement.error,
        retryable=settlement.retryable,
        retry_after_seconds=settlement.retry_after_seconds,
        scope=settlement.scope,
    )
    return await _settle_one(settlements, item)


@fast_route(
    router,
    "/jobs/{job_id}/snooze",
    **operation(SettleResult, NotFound, LeaseLost, *_INVALID_BODY, body=Snooze, scopes=WORK),
)
async def snooze_job(
    job_id: UUID, settlement: Annotated[Snooze, body(Snooze)], settlements: SettlementServiceDep
) -> Response:
    """Snoozes a job: it runs again in `delay_seconds`. The run does not count as an attempt."""
    item = Settlement(
        job_id=job_id,
        lease_token=settlement.lease_token,
        outcome=Outcome.SNOOZE,
        delay_seconds=settlement.delay_seconds,
        checkpoint=settlement.checkpoint,
    )
    return await _settle_one(settlements, item)


@fast_route(
    router,
    "/jobs/{job_id}/release",
    **operation(SettleResult, NotFound, LeaseLost, *_INVALID_BODY, body=Release, scopes=WORK),
)
async def release_job(
    job_id: UUID, settlement: Annotated[Release, body(Release)], settlements: SettlementServiceDep
) -> Response:
    """Releases a job: any worker may claim it now. The run does not count as an attempt."""
    return await _settle_one(
        settlements, Settlement(job_id=job_id, lease_token=settlement.lease_token, outcome=Outcome.RELEASE)
    )


async def _settle_one(settlements: SettlementService, item: Settlement) -> Response:
    return json_response(await settlements.settle_one(item))
