"""How administrators make and revoke API keys."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api_keys.issuing import Issuing
from app.api_keys.schemas import ApiKey, ApiKeyCreate, ApiKeyCreated, ApiKeyList
from app.errors import MalformedJson, NotFound, TooManyKeys, ValidationFailed
from app.web.bodies import NoBody, answer, body
from app.web.contract import MANAGE, gives
from app.web.paging import Page
from app.web.rooms import of

router = APIRouter(tags=["api_keys"])

IssuingRoom = Annotated[Issuing, of(Issuing)]
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


@router.post(
    "/api-keys",
    **gives(ApiKeyCreated, MalformedJson, ValidationFailed, TooManyKeys, takes=ApiKeyCreate, status=201, to=MANAGE, everywhere=True),
)
async def create_api_key(wanted: Annotated[ApiKeyCreate, body(ApiKeyCreate)], issuing: IssuingRoom) -> Response:
    """Makes a key, and tells its secret this once. From the first key on, every call needs one.

    A name may have two live keys: make the new one, hand it out, revoke the old one. If the answer was lost, revoke that key and make
    another.
    """
    key = await issuing.create(wanted)
    return answer(key, status=201, headers={"Location": f"/api-keys/{key.id}", "Cache-Control": "no-store"})


@router.get("/api-keys", **gives(ApiKeyList, ValidationFailed, to=MANAGE, everywhere=True))
async def list_api_keys(issuing: IssuingRoom, page: Page) -> Response:
    """All keys, newest first, without their secrets; revoked ones too."""
    return answer(await issuing.page(page))


@router.get("/api-keys/{key_id}", **gives(ApiKey, NotFound, to=MANAGE, everywhere=True))
async def get_api_key(key_id: KeyId, issuing: IssuingRoom) -> Response:
    """One key, without its secret."""
    return answer(await issuing.get(key_id))


@router.delete("/api-keys/{key_id}", **gives(ApiKey, NotFound, to=MANAGE, everywhere=True))
async def revoke_api_key(key_id: KeyId, issuing: IssuingRoom, _: NoBody) -> Response:
    """Revokes a key for good: refused here when this is answered, elsewhere within 250 ms. Again changes nothing."""
    return answer(await issuing.revoke(key_id))
