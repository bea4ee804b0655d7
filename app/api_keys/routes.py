"""HTTP routes of API keys."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api_keys.schemas import ApiKey, ApiKeyCreate, ApiKeyCreated, ApiKeyList
from app.api_keys.service import ApiKeyService
from app.errors import MalformedJson, NotFound, TooManyKeys, ValidationFailed
from app.http.bodies import NoBody, body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, operation
from app.http.pagination import Page

router = APIRouter(tags=["api_keys"])

ApiKeyServiceDep = Annotated[ApiKeyService, service("api_keys")]
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


@router.post(
    "/api-keys",
    **operation(
        ApiKeyCreated,
        MalformedJson,
        ValidationFailed,
        TooManyKeys,
        body=ApiKeyCreate,
        status=201,
        scopes=MANAGE,
        all_queues=True,
    ),
)
async def create_api_key(
    request: Annotated[ApiKeyCreate, body(ApiKeyCreate)], api_keys: ApiKeyServiceDep, access: AccessDep
) -> Response:
    """Creates an API key and returns its secret, which is never shown again.

    Once the first key exists, every call needs one. Create an administrator key first (scope
    `admin`, or `manage` for every queue). Otherwise only the command line can create further keys.

    A name may have two live keys. To rotate a key, create the new one, distribute it, and revoke
    the old one. If the response was lost, revoke that key and create another.
    """
    key = await api_keys.create(request, access.caller)
    return json_response(key, status=201, headers={"Location": f"/api-keys/{key.id}", "Cache-Control": "no-store"})


@router.get("/api-keys", **operation(ApiKeyList, ValidationFailed, scopes=MANAGE, all_queues=True))
async def list_api_keys(api_keys: ApiKeyServiceDep, page: Page) -> Response:
    """Lists all API keys, including revoked ones, newest first, without their secrets."""
    return (await api_keys.page(page)).response()


@router.get("/api-keys/{key_id}", **operation(ApiKey, NotFound, scopes=MANAGE, all_queues=True))
async def get_api_key(key_id: KeyId, api_keys: ApiKeyServiceDep) -> Response:
    """Returns one API key, without its secret."""
    return json_response(await api_keys.get(key_id))


@router.delete("/api-keys/{key_id}", **operation(ApiKey, NotFound, scopes=MANAGE, all_queues=True))
async def revoke_api_key(key_id: KeyId, api_keys: ApiKeyServiceDep, _: NoBody, access: AccessDep) -> Response:
    """Revokes an API key permanently.

    This broker rejects the key as soon as the call returns, other brokers within 250 ms. Revoking a
    revoked key changes nothing.

    The last administrator key can be revoked, too. The log then warns: only `keys create --admin`
    on the command line can create another.
    """
    return json_response(await api_keys.revoke(key_id, access.caller))
