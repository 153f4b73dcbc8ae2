"""Requests of an owner's or buyer's machine: one session, JSON answers, refusals in a sentence."""

from __future__ import annotations

import os
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from tollkeeper.core.configuration import is_loopback
from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.printable import printable

_WAIT_SECONDS: Final = 60


class RefusedError(Exception):
    """Refusal of a request, or failure to send it; the text says why. `code` is the gateway's, where it gave one."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


def open_session(wait_seconds: float = _WAIT_SECONDS) -> aiohttp.ClientSession:
    """A session for these requests: no limit to the length of an upload, but to every silence."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_WAIT_SECONDS, sock_read=wait_seconds)
    return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


def require_unheard(url: str) -> URL:
    """Refuse to sign for a URL whose answers others on the way could have written: http beyond this machine.

    Raises: RefusedError.
    """
    try:
        parsed = URL(url)
    except ValueError as error:
        raise RefusedError(f"{url} is no URL: {error}") from None
    if parsed.scheme != "https" and not is_loopback(parsed.host or ""):
        raise RefusedError(
            f"{url}: whoever is on the way could change what this asks you to sign, and nothing was signed. Use https; "
            "http is for this machine alone"
        )
    return parsed


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    has: str = "",
    **options: Any,  # noqa: ANN401 - the session's own
) -> JsonObject:
    """The JSON object that was answered with success, which `has` a field where one is named. Raises: RefusedError."""
    try:
        async with session.request(method, url, allow_redirects=False, **options) as answer:
            body = msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise RefusedError(f"no answer that could be read from {url}: {why(error)}") from error
    if not isinstance(body, dict) or not 200 <= answer.status < 300:
        reason = reason_of(body)
        raise RefusedError(f"the gateway refused: {reason or f'status {answer.status}'}", reason.partition(":")[0])
    if has and has not in body:
        raise RefusedError(f"{url} does not answer as a gateway does: is that one's URL?")
    return body


def why(error: Exception) -> str:
    """Return why no answer came, in words."""
    match error:
        case aiohttp.ClientSSLError():
            return f"it does not speak TLS as it should, or nobody vouches for it ({error.strerror or error})"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} cannot be resolved"
        case aiohttp.ClientConnectorError(errno=int(number)) if number:
            return f"{error.host}:{error.port} cannot be reached ({os.strerror(number)})"
    return str(error) or type(error).__name__


def reason_of(body: object) -> str:
    """Code and message of a refusal, and what there is instead; empty where there are none."""
    said = body.get("error") if isinstance(body, dict) else None
    if not isinstance(said, dict):
        return ""
    details = said.get("details")
    supported = details.get("supported") if isinstance(details, dict) else None
    instead = f" ({', '.join(map(str, supported))})" if isinstance(supported, list) else ""
    return printable(f"{said.get('code')}: {said.get('message')}{instead}")
