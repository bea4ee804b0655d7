"""GET /docs: the OpenAPI document to read and to try, with assets that come along (no internet needed)."""

from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse

from app.errors import NotFound

router = APIRouter(include_in_schema=False)

ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


@cache
def _folder() -> Path:
    import swagger_ui_bundle  # type: ignore[import-untyped]

    return Path(swagger_ui_bundle.swagger_ui_path)


@router.get("/docs")
async def read_docs() -> Response:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Longshore",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="data:,",
    )


@router.get("/docs/{asset}")
async def read_docs_asset(asset: str) -> Response:
    if asset not in ASSETS:
        raise NotFound(f"no asset {asset}")
    return FileResponse(_folder() / asset, media_type=ASSETS[asset])
