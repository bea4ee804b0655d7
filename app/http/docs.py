"""GET /docs: Swagger UI for the OpenAPI document, with bundled assets (no internet needed)."""

from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from app.errors import NotFound

router = APIRouter(include_in_schema=False)

ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

# Allows only scripts that this server serves, and no inline scripts. So a script that is injected
# through a payload or a name does not run.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The bundled Swagger UI supports OpenAPI 3.0 only. The page labels its copy of the document as
# 3.0.3, because the 3.1 features in the document do not change how Swagger UI shows it.
START = """fetch("/openapi.json")
  .then((response) => response.json())
  .then((document) =>
    SwaggerUIBundle({
      spec: { ...document, openapi: "3.0.3" },
      dom_id: "#swagger-ui",
      deepLinking: true,
      showExtensions: true,
      showCommonExtensions: true,
    }),
  );
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<title>Longshore</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""


@cache
def _content(asset: str) -> bytes:
    """Reads an asset from the package swagger_ui_bundle.

    The routes do not use Starlette's FileResponse, because it accepts Range headers, and rejects
    invalid ones with an error format of its own.
    """
    import swagger_ui_bundle  # type: ignore[import-untyped]

    return Path(swagger_ui_bundle.swagger_ui_path, asset).read_bytes()


@router.get("/docs")
async def read_docs() -> Response:
    return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY})


@router.get("/docs/start.js")
async def read_docs_script() -> Response:
    return Response(START, media_type="text/javascript")


@router.get("/docs/{asset}")
async def read_docs_asset(asset: str) -> Response:
    if asset not in ASSETS:
        raise NotFound(f"no asset named {asset}")
    return Response(_content(asset), media_type=ASSETS[asset])
