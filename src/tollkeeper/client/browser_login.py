"""A login by the wallet of a browser on this machine, without a key here (contract 11).

1. This program makes a secret, listens on a port of the loopback address, and opens the dashboard's page with the
   secret's hash, the port, and a short code that it shows as well.
2. The user compares the codes there and lets the program in. The browser comes to the port with a one-time code.
3. The program shows the one-time code and the secret to the gateway, and gets a login of its own.

So a stranger's link logs nobody in, and a one-time code alone is worth nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from tollkeeper.client.requests import RefusedError, ask, require_unheard

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

    from tollkeeper.core.json_types import JsonObject

_HOST: Final = "127.0.0.1"
_SECONDS: Final = 300
_HEAD_MAX_BYTES: Final = 16_384
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ23456789"  # none that is taken for another, and no words
_DONE: Final = "You can close this page: the command line goes on.\n"
_NOTHING: Final = "There is nothing here.\n"


async def log_in_by_browser(
    session: aiohttp.ClientSession, server: str, dashboard: str, open_page: Callable[[str, str], None]
) -> JsonObject:
    """Return the gateway's answer to a login that a browser let in.

    `open_page` is told the page's URL and the code that both sides show. Raises: RefusedError.
    """
    require_unheard(server)
    require_unheard(dashboard)
    verifier = secrets.token_urlsafe(32)
    shown = "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(2))
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    listener = await asyncio.start_server(
        lambda reader, writer: _answer(reader, writer, told), _HOST, 0, limit=_HEAD_MAX_BYTES
    )
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        query = {"port": port, "code": shown, "challenge": _challenge_of(verifier)}
        open_page(f"{dashboard}/app/terminal?{urlencode(query)}", shown)
        try:
            async with asyncio.timeout(_SECONDS):
                code = await told
        except TimeoutError:
            raise RefusedError(f"nobody let this program in within {_SECONDS // 60} minutes: run it again") from None
    proof = {"code": code, "verifier": verifier, "port": port}
    return await ask(session, "POST", f"{server}/api/v1/auth/handover", has="accessToken", json=proof)


def _challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: asyncio.Future[str]) -> None:
    """Take the one-time code from the browser's request, and from nothing else that asks at this port."""
    try:
        async with asyncio.timeout(10):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, *_ = head.split(" ", 2)
        parts = urlsplit(target)
        code = parse_qs(parts.query).get("code", [""])[0]
        is_code = method == "GET" and parts.path == "/" and bool(code)
        status, text = ("200 OK", _DONE) if is_code else ("404 Not Found", _NOTHING)
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n"
            f"Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()
        if is_code and not told.done():
            told.set_result(code)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # whoever it was, the browser comes again
    finally:
        writer.close()
