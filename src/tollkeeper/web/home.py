"""The front page: what this is, a live 402 to try where there is one, and the way on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from litestar.response import Response

from tollkeeper.api import HttpRequest
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.api.openapi import Operation, ResponseSpec
from tollkeeper.core.configuration import AnonymousPaygates
from tollkeeper.describing import route
from tollkeeper.web.rendering import rendered

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.gateway.app import Gateway
    from tollkeeper.web.assets import Assets

_PAGE: Final = Operation(
    "home", "get /", "The front page", tag="pages", answers={200: ResponseSpec("HTML", {"text/html": str})}
)
_ICON: Final = Operation(
    "icon", "get /favicon.ico", "The icon", tag="pages", answers={200: ResponseSpec("SVG", {"image/svg+xml": str})}
)
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept",
}


def home_routes(gateway: Gateway, assets: Assets, app_url: str | None) -> list[HTTPRouteHandler]:
    """Return the handlers of `/` and of the icon that browsers ask for."""

    @route(_PAGE, name="home")
    async def home(request: HttpRequest) -> Response[bytes]:
        """Tell a person what this is; for programs nothing is here. Raises: NOT_FOUND."""
        links = {"api": "/openapi.json", "docs": "/docs", **({"dashboard": app_url + "/app"} if app_url else {})}
        if "text/html" not in request.headers.get("accept", ""):
            raise ApiError(Code.NOT_FOUND, "there is nothing at this path")
        gate = await _tried(gateway)
        values = {"assets": f"/assets/{assets.version}", "links": links, "gate": gate}
        return Response(rendered("home.html", values).encode(), media_type="text/html; charset=utf-8", headers=_HEADERS)

    @route(_ICON)
    async def icon() -> Response[bytes]:
        """Serve the pages' icon where browsers look for one."""
        headers = {"Cache-Control": "public, max-age=86400", "X-Content-Type-Options": "nosniff"}
        return Response(assets.plain("icon.svg"), media_type="image/svg+xml", headers=headers)

    return [home, icon]


async def _tried(gateway: Gateway) -> dict[str, object] | None:
    """Return a PayGate that nobody owns, to try: the first one that was made, which in a sandbox is its own."""
    if gateway.settings.anonymous_paygates is not AnonymousPaygates.MANAGE:
        return None
    total = (await gateway.management.page(None, 1, 0))["pagination"].total_count
    if not total:
        return None
    gate: dict[str, object] = (await gateway.management.page(None, 1, total - 1))["data"][0]
    return gate
