"""The sandbox's demo target: a small HTTP API that somebody might want to sell calls of.

`GET /weather?city=Oslo` answers a forecast (the same for the same city and hour), any method on `/echo` what it was
asked, `/slow?seconds=N` after a while, `/large?bytes=N` that many bytes, `/status/N` with that status. It knows nothing
of payments; it counts its calls, so that a demo can show that an unpaid one never came.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from tollkeeper.core.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.serving.http.asgi import Message, Receive, Send

_SLOW_SECONDS_MAX: Final = 900
_LARGE_BYTES_MAX: Final = 64 * 1024 * 1024
_CHUNK: Final = b"x" * 65_536
_BODY_SIZE_BYTES: Final = 1024 * 1024
_SKIES: Final = ("clear", "cloudy", "rain", "snow", "fog", "storm")


class DemoTarget:
    """The ASGI application. `calls` counts the requests that reached it."""

    def __init__(self) -> None:
        self.calls = 0
        self._routes: dict[str, Callable[[Message, Receive, Send], Awaitable[None]]] = {
            "weather": _weather,
            "echo": _echo,
            "slow": _slow,
            "large": _large,
            "status": _status,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http":
            return
        self.calls += scope["method"] != "HEAD"  # by which a gateway looks whether a target answers
        route = self._routes.get(scope["path"].strip("/").partition("/")[0])
        try:
            if route is None:
                await _answer(send, 404, {"error": "no such path", "paths": sorted(self._routes)})
            else:
                await route(scope, receive, send)
        except ValueError:
            await _answer(send, 400, {"error": "a number was expected"})


def forecast(city: str) -> JsonObject:
    """A made-up forecast, always the same for one city."""
    digest = hashlib.sha256(city.strip().lower().encode()).digest()
    return {
        "city": city,
        "sky": _SKIES[digest[0] % len(_SKIES)],
        "temperatureCelsius": digest[1] % 45 - 12,
        "windMetresPerSecond": digest[2] % 20,
    }


async def _weather(scope: Message, _receive: Receive, send: Send) -> None:
    await _answer(send, 200, forecast(_query(scope).get("city", "Reykjavik")))


async def _echo(scope: Message, receive: Receive, send: Send) -> None:
    body = b""
    more = True
    while more and len(body) <= _BODY_SIZE_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    said = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode("latin-1"),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
        "body": body.decode("latin-1"),
    }
    await _answer(send, 200, said)


async def _slow(scope: Message, _receive: Receive, send: Send) -> None:
    seconds = min(float(_query(scope).get("seconds", "1")), _SLOW_SECONDS_MAX)
    await asyncio.sleep(seconds)
    await _answer(send, 200, {"sleptSeconds": seconds})


async def _large(scope: Message, _receive: Receive, send: Send) -> None:
    left = min(int(_query(scope).get("bytes", "1048576")), _LARGE_BYTES_MAX)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(left).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while left > 0:
        chunk = _CHUNK[:left]
        left -= len(chunk)
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _status(scope: Message, _receive: Receive, send: Send) -> None:
    status = int(scope["path"].rstrip("/").rpartition("/")[2])
    await _answer(send, status if 200 <= status <= 599 else 400, {"status": status})


def _query(scope: Message) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1")))


async def _answer(send: Send, status: int, body: JsonObject) -> None:
    data = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
