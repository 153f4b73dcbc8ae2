"""Web pages that may use `/api` (contract 3.2): those of our own origin and those that the settings name.

A page elsewhere is refused outright, not just kept from reading the answer: without a preflight its request would have
been carried out, and where gates may be made without a login, a page could make them on its reader's machine. The Host
header is not asked, since a page chooses it by its own name's address. Calls of PayGates are open to every page
(contract 4.1) and are not looked at here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tollkeeper.api import new_request_id, own_headers, send_refusal
from tollkeeper.core.api.errors import ApiError, Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.api import Headers
    from tollkeeper.serving.http.asgi import Application, Message, Receive, Send

_SLASHES: Final = re.compile("/{2,}")
_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_EXPOSED: Final = (
    b"X-Payment-Response, X-Total-Count, ETag, X-Request-Id, X-Correlation-Id, X402-Version, Retry-After, RateLimit, "
    b"RateLimit-Policy, PAYMENT-REQUIRED, PAYMENT-RESPONSE"
)
_MAX_AGE_SECONDS: Final = b"600"


class OriginGuard:
    """In front of `app`: answers preflights of named origins, refuses other pages under the guarded prefixes."""

    def __init__(self, app: Application, own_origin: str, named: Sequence[str], prefixes: Sequence[str]) -> None:
        self._app = app
        self._own = own_origin.lower()
        self._prefixes = tuple(prefixes)
        self.name(named)

    def name(self, origins: Sequence[str]) -> None:
        """Serve pages of these origins, and of no others, from now on."""
        self._named = frozenset(origin.lower() for origin in origins)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        origin = self._foreign_origin(scope)
        if origin is None:
            await self._app(scope, receive, send)
        elif origin.lower() not in self._named:
            await _refuse(scope, send)
        elif _is_preflight(scope):
            headers = [*own_headers(_named(scope), scope["headers"]), *_allow(origin), *_preflight(scope)]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:

            async def send_allowing(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exposed = (b"access-control-expose-headers", _EXPOSED)
                    message["headers"] = [*message.get("headers", ()), *_allow(origin), exposed]
                await send(message)

            await self._app(scope, receive, send_allowing)

    def _foreign_origin(self, scope: Message) -> str | None:
        # The hub takes `//api` for `/api`; the guard must not be the one that does not.
        if scope["type"] != "http" or not _SLASHES.sub("/", scope["path"]).startswith(self._prefixes):
            return None
        origin = _header(scope, b"origin")
        return None if origin is None or origin.lower() == self._own else origin


def _header(scope: Message, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value, "latin-1")
    return None


def _is_preflight(scope: Message) -> bool:
    return scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None


def _allow(origin: str) -> Headers:
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]


def _preflight(scope: Message) -> Headers:
    wanted = _header(scope, b"access-control-request-headers") or ""
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", wanted.encode("latin-1")),
        (b"access-control-max-age", _MAX_AGE_SECONDS),
    ]


async def _refuse(scope: Message, send: Send) -> None:
    error = ApiError(
        Code.FORBIDDEN, "web pages of this origin may not use this API; the setting cors_origins names some"
    )
    await send_refusal(send, error, _named(scope), scope["headers"], [(b"vary", b"Origin")])


def _named(scope: Message) -> str:
    """The id of a request that no application sees; its log line is named by it, too."""
    scope["state"]["request_id"] = request_id = new_request_id()
    return request_id
