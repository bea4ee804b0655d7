"""How administrators make and revoke API keys."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api_keys.schemas import ApiKey, ApiKeyCreate, ApiKeyCreated, ApiKeyList
from app.api_keys.service import ApiKeyService
from app.errors import MalformedJson, NotFound, TooManyKeys, ValidationFailed
from app.http.dependencies import service
from app.http.operation import MANAGE, operation
from app.http.pagination import Page
from app.http.request_body import NoBody, body, json_response

router = APIRouter(tags=["api_keys"])

ApiKeyServiceDep = Annotated[ApiKeyService, service(ApiKeyService)]
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


@router.post(
    "/api-keys",
    **operation(
        ApiKeyCreated,
        MalformedJson,
        ValidationFailed,
        TooManyKeys,
        takes=ApiKeyCreate,
        status=201,
        to=MANAGE,
        everywhere=True,
    ),
)
async def create_api_key(wanted: Annotated[ApiKeyCreate, body(ApiKeyCreate)], api_keys: ApiKeyServiceDep) -> Response:
    """Creates a key, and returns its secret this once. From the first key on, every call needs one.

    Make the first key an administrator's (scope `admin`, or `manage` for every queue). Otherwise only the command line can make others.

    A name may have two live keys: make the new one, hand it out, revoke the old one. If the answer was lost, revoke that key and make
    another.
    """
    key = await api_keys.create(wanted)
    return json_response(key, status=201, headers={"Location": f"/api-keys/{key.id}", "Cache-Control": "no-store"})


@router.get("/api-keys", **operation(ApiKeyList, ValidationFailed, to=MANAGE, everywhere=True))
async def list_api_keys(api_keys: ApiKeyServiceDep, page: Page) -> Response:
    """All keys, newest first, without their secrets; revoked ones too."""
    return (await api_keys.page(page)).response()


@router.get("/api-keys/{key_id}", **operation(ApiKey, NotFound, to=MANAGE, everywhere=True))
async def get_api_key(key_id: KeyId, api_keys: ApiKeyServiceDep) -> Response:
    """One key, without its secret."""
    return json_response(await api_keys.get(key_id))


@router.delete("/api-keys/{key_id}", **operation(ApiKey, NotFound, to=MANAGE, everywhere=True))
async def revoke_api_key(key_id: KeyId, api_keys: ApiKeyServiceDep, _: NoBody) -> Response:
    """Revokes a key permanently: refused by this broker when the call returns, by others within 250 ms. Repeating it changes nothing.

    The last administrator's key can be revoked too. The log then warns: only `keys create --admin` on the command line makes another.
    """
    return json_response(await api_keys.revoke(key_id))
