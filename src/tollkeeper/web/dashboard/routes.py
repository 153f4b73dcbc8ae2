"""The dashboard: the pages below `/app`, for the owners of PayGates (contract 11).

It answers at one origin, which holds no page of a stranger: `app_url`, and on this machine alone the gateway's own. A
request that names another host gets nothing of it, so no name that leads here by a stranger's will can read a page.
Every page is made by the operations of the management; nothing is decided here but who is logged in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from litestar import asgi

from tollkeeper.api import header_pairs
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.configuration import is_loopback
from tollkeeper.web.dashboard.visit import ROOT, LoginRequiredError, PageAnswer, PagePlace, Visit

if TYPE_CHECKING:
    from litestar.handlers import ASGIRouteHandler
    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.gateway.app import Gateway
    from tollkeeper.web.assets import Assets
    from tollkeeper.web.dashboard.page import DashboardPage
    from tollkeeper.web.play import Play

# The page asks nobody but this origin, holds no frame and no script of anybody else, and stands in no frame.
_HEADERS: Final = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "same-origin"),  # none at all would hide from which page a form comes
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)
_HEADINGS: Final = {
    Code.NOT_FOUND: "Nothing is here",
    Code.FORBIDDEN: "This is not yours to do",
    Code.RATE_LIMITED: "Too many requests",
    Code.UNAVAILABLE: "Not available now",
}


class Dashboard:
    """The pages, made when the first of them is asked for."""

    def __init__(self, gateway: Gateway, assets: Assets, app_url: str | None, play: Play | None = None) -> None:
        """`app_url`: the origin that the pages answer at; None where there are no pages. `play`: a sandbox's."""
        self._gateway = gateway
        self._assets = assets
        self._app_url = app_url
        self._play = play
        self._pages: list[DashboardPage] | None = None

    def route(self) -> ASGIRouteHandler:
        """Return the handler of `/app`."""

        @asgi(ROOT, is_mount=True, copy_scope=False)
        async def app(scope: HTTPScope, receive: Receive, send: Send) -> None:
            await self._serve(scope, receive, send)

        return app

    async def _serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises: NOT_FOUND at another place than the dashboard's own."""
        if self._app_url is None:
            raise ApiError(Code.NOT_FOUND, "there is no dashboard here: its operator has set no app_url")
        path = scope["path"].removeprefix(ROOT).rstrip("/")
        if _host(scope) != urlsplit(self._app_url).netloc.lower():
            await _send(send, self._elsewhere(scope, path, self._app_url), ())
            return
        visit = Visit(scope, receive, path, self._place(self._app_url), self._gateway.auth)
        await _send(send, await self._answer(visit), visit.cookies, has_body=scope["method"] != "HEAD")

    def _elsewhere(self, scope: HTTPScope, path: str, app_url: str) -> PageAnswer:
        """Lead from another name of this machine to the dashboard's own. Raises: NOT_FOUND."""
        host = urlsplit("//" + _host(scope)).hostname or ""
        if scope["method"] != "GET" or not is_loopback(host) or not is_loopback(urlsplit(app_url).hostname or ""):
            raise ApiError(Code.NOT_FOUND, "there is nothing at this path")
        query = scope["query_string"].decode("latin-1")
        return PageAnswer(
            b"", 307, headers=(("Location", f"{app_url}{ROOT}{quote(path)}" + (f"?{query}" if query else "")),)
        )

    def _place(self, app_url: str) -> PagePlace:
        enabled = tuple(asset.network for asset in self._gateway.assets().values())
        assets = f"/assets/{self._assets.version}"
        return PagePlace(app_url, assets, enabled, self._gateway.default_network, self._play is not None)

    async def _answer(self, visit: Visit) -> PageAnswer:
        try:
            return await self._page(visit)
        except LoginRequiredError:
            if visit.scope["method"] != "GET":
                return _refusal(visit, ApiError(Code.AUTH_REQUIRED, "you are not logged in any more; nothing was done"))
            query = visit.scope["query_string"].decode("latin-1")
            onward = visit.path + (f"?{query}" if query else "")
            return visit.go("/login", **({"next": onward} if onward else {}))
        except ApiError as error:
            return _refusal(visit, error)

    async def _page(self, visit: Visit) -> PageAnswer:
        """Raises: LoginRequiredError, and what the page refuses."""
        if self._pages is None:
            from tollkeeper.web.dashboard.pages import all_pages  # noqa: PLC0415 - a process that no owner asks does without

            self._pages = all_pages(self._gateway, self._play)
        method = "GET" if visit.scope["method"] == "HEAD" else visit.scope["method"]
        found = [(page, match) for page in self._pages if (match := page.path.fullmatch(visit.path))]
        if not found:
            raise ApiError(Code.NOT_FOUND, "there is nothing at this path")
        answering = next(((page, match) for page, match in found if page.method == method), None)
        if answering is None:
            allowed = ", ".join(sorted({page.method for page, _ in found}))
            raise ApiError(Code.METHOD_NOT_ALLOWED, "the method is not allowed here", headers={"Allow": allowed})
        page, match = answering
        if method != "GET":
            visit.check_origin()
        if not page.is_open:
            await visit.log_in()
        given: JsonObject = {name: int(text) if name == "gate_id" else text for name, text in match.groupdict().items()}
        return await page.handler(visit, **given)


def _host(scope: HTTPScope) -> str:
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""


def _refusal(visit: Visit, error: ApiError) -> PageAnswer:
    message = error.message[:1].upper() + error.message[1:]
    heading = _HEADINGS.get(error.code, "This cannot be done")
    page = visit.page(
        "refused.html", status=error.status, heading=heading, sentence=message + ".", code=error.code.value
    )
    return PageAnswer(page.body, page.status, headers=tuple(error.headers.items()))


async def _send(send: Send, answer: PageAnswer, cookies: list[str] | tuple[()], *, has_body: bool = True) -> None:
    own = {"Content-Type": answer.media_type, **dict(_HEADERS), **dict(answer.headers)}
    headers = header_pairs(own) + [(b"set-cookie", one.encode("latin-1")) for one in cookies]
    if isinstance(answer.body, bytes):
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body if has_body else b"", "more_body": False})
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async for piece in answer.body:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
