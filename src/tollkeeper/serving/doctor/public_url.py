"""The way from outside to the server, as a caller goes it: name, certificate, proxy (contract 1).

It is gone by bare bytes, because a client library mends paths before it sends them, and a proxy must not.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from tollkeeper.settings.model import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tollkeeper.serving.config.findings import Findings
    from tollkeeper.settings.model import Settings

_SECONDS: Final = 10.0
_NOBODY_S: Final = "/tollkeeper-doctor"  # a path at which nothing is
_BODY_BYTES: Final = 4 * 1024 * 1024
_HEAD_MAX_BYTES: Final = 65_536
_BODY_MAX_BYTES: Final = 262_144
_MENDED_PATHS: Final = (f"{_NOBODY_S}/%2e%2e/healthz", f"{_NOBODY_S}/../healthz", "//healthz")


async def examine_public_url(settings: Settings, found: Findings) -> None:
    """Ask the server by its public URL, and see that nothing on the way changes or holds what is sent."""
    url = settings.public_url.text
    try:
        status, headers, _ = await _ask(url, "/healthz")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        remedy = "start the server; where it runs, mend the name, the certificate, or the proxy in front"
        found.fail("public_url", f"{url} does not answer ({_why(error)})", remedy)
        found.unchecked.append(f"does a proxy in front of {url} leave paths and bodies alone")
        return
    if status != 200 or "x402-version" not in headers:
        problem = f"{url}/healthz is answered by something else (status {status})"
        found.fail("public_url", problem, "let the proxy pass every path to tollkeeper")
        return
    found.good.append(f"public_url: {url} answers")
    try:
        await _examine_identity(settings, url, found)
        await _examine_path(url, found)
        await _examine_body(url, found)
        if settings.role is not Role.HUB:
            await _examine_events(url, found)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        found.warn("public_url", f"an answer broke off ({_why(error)})", "run it again")


async def _examine_identity(settings: Settings, url: str, found: Findings) -> None:
    """Check that the keys of the server there are those of this configuration."""
    if settings.auth_keys is None:
        return
    _, _, body = await _ask(url, "/.well-known/jwks.json")
    there = _key_ids_in(body)
    if there and there.isdisjoint(settings.auth_keys.keys):
        problem = f"{url} leads to a server with other keys than this configuration's"
        found.fail("public_url", problem, "restart that server, or mend name and proxy")


def _key_ids_in(body: bytes) -> set[str]:
    """Return the ids in a JWKS; nothing where it cannot be read, as where a proxy cut it into chunks."""
    try:
        return {str(key.get("kid")) for key in msgspec.json.decode(body, type=dict[str, Any])["keys"]}
    except (AttributeError, KeyError, TypeError, msgspec.DecodeError):
        return set()


async def _examine_path(url: str, found: Findings) -> None:
    """Send paths that a proxy might mend: a payment for one URL would be shown at another one."""
    for path in _MENDED_PATHS:
        status, _, _ = await _ask(url, path)
        if status == 200:
            problem = f"a proxy changes paths on the way ({path} arrived as /healthz)"
            remedy = "pass the path untouched: nginx's proxy_pass without a path and with merge_slashes off"
            found.fail("proxy", problem, remedy)
            return
    found.good.append("proxy: paths arrive as they are sent")


async def _examine_body(url: str, found: Findings) -> None:
    """Send the beginning of a long body to a path at which nothing is: the server answers without the rest."""
    async with _connected(url) as (reader, writer):
        head = _head(url, "POST", _NOBODY_S, f"Content-Length: {_BODY_BYTES}\r\nContent-Type: text/plain\r\n")
        writer.write(head + b"x" * 1024)
        await writer.drain()
        try:
            async with asyncio.timeout(_SECONDS / 2):
                await _read_head(reader)
        except TimeoutError:
            remedy = "turn request buffering off: nginx's proxy_request_buffering off"
            found.warn("proxy", "it holds a body until it is whole", remedy)
            return
    found.good.append("proxy: bodies are not held")


async def _examine_events(url: str, found: Findings) -> None:
    """Ask for two events that are seconds apart: both at once come from a proxy that waited for the end."""
    async with _connected(url) as (reader, writer), asyncio.timeout(_SECONDS):
        writer.write(_head(url, "GET", "/healthz", "Accept: text/event-stream\r\n"))
        await writer.drain()
        seen = b""
        while b"data: first" not in seen:
            piece = await reader.read(_HEAD_MAX_BYTES)
            if not piece:
                raise ValueError("its stream of events ended before the first")
            seen += piece
    if b"data: second" in seen:
        remedy = "turn response buffering off: nginx's proxy_buffering off"
        found.warn("proxy", "it holds a stream of events until that ends", remedy)
        return
    found.good.append("proxy: streams of events are not held")


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_HEAD_MAX_BYTES)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _ask(url: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a GET. Raises: OSError, TimeoutError, ValueError, IncompleteReadError."""
    async with _connected(url) as (reader, writer), asyncio.timeout(_SECONDS):
        writer.write(_head(url, "GET", path))
        await writer.drain()
        status, headers = await _read_head(reader)
        length = headers.get("content-length", "")
        size_bytes = min(int(length), _BODY_MAX_BYTES) if length.isdecimal() else 0
        return status, headers, await reader.readexactly(size_bytes)


def _head(url: str, method: str, path: str, more: str = "") -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n{more}\r\n"
    return lines.encode("ascii")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("its answer has a head without end") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ")
    if not version.startswith("HTTP/"):
        raise ValueError("it does not speak HTTP")
    pairs = (line.partition(":") for line in lines if line)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _why(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
