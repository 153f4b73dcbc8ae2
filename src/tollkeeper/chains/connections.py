"""HTTP to a chain's nodes: kept connections, credentials and redirects (security A-15).

A node's URL may hold a key, so it is never shown. A user name and password in it are sent as Basic credentials, to that
host alone. A redirect is followed once and then kept until the node fails there: to the same host, or to an https URL.
What a reply means is not decided here.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import aiohttp

from tollkeeper.chains.replies import HttpReply, RpcUnavailable

if TYPE_CHECKING:
    from tollkeeper.chains.nodes import Node

CLOSED: Final = "the connection to the node was closed"
# What aiohttp raises where a connection ends under a question; it also has these for one that cannot be made.
_BROKEN_OFF: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
_REPLY_SIZE_BYTES: Final = 16 * 1024 * 1024
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_REDIRECTS_MAX: Final = 3


class _BrokenOffError(RpcUnavailable):
    """A connection that had been made ended before there was an answer."""


class NodeConnections:
    """Kept connections, until one of them turns out to be out of step."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._calls: Counter[aiohttp.ClientSession] = Counter()  # under way
        self._is_closed = False

    async def post(self, node: Node, body: bytes, seconds: float) -> HttpReply:
        """Return the whole reply, from where a redirect leads. Raises: RpcUnavailable."""
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        for _ in range(_REDIRECTS_MAX):
            reply = await self._post_again(node.url, body, deadline - now())
            if reply.status not in _REDIRECTS:
                return reply
            node.moved(_target(node.url, reply.location))
        raise RpcUnavailable("the node redirects without end")

    async def renew(self) -> None:
        """Let every later call go over a new connection; those under way still end on theirs."""
        session, self._session = self._session, None
        if session is not None:
            await self._close_unused(session)

    async def close(self) -> None:
        """End all connections, for good."""
        self._is_closed = True
        self._session = None
        for session in tuple(self._calls):
            await session.close()

    async def _post_again(self, url: str, body: bytes, seconds: float) -> HttpReply:
        """Post, and once more over a new connection where the kept one broke off. Raises: RpcUnavailable.

        Nodes close idle connections when they like, and what leaves in that moment meets the closing. A read may be
        asked twice; a signed transaction is the same one.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        try:
            return await self._post(url, body, seconds)
        except _BrokenOffError:
            left = deadline - now()
            if left <= 0:  # which would be no limit at all
                raise
        former, self._session = self._session, None  # what others kept meanwhile may be closed, too
        try:
            return await self._post(url, body, left)
        finally:
            if former is not None:
                await self._close_unused(former)

    async def _post(self, url: str, body: bytes, seconds: float) -> HttpReply:
        if self._is_closed:  # whoever still waited for a turn would open connections that nobody ends
            raise RpcUnavailable(CLOSED)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=60),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
        session = self._session
        self._calls[session] += 1
        try:
            return await _exchange(session, url, body, seconds)
        except _BrokenOffError:
            if session is self._session:  # others that were kept are as old
                self._session = None
            raise
        finally:
            self._calls[session] -= 1
            await self._close_unused(session)

    async def _close_unused(self, session: aiohttp.ClientSession) -> None:
        if session is not self._session and not self._calls[session]:
            del self._calls[session]
            await session.close()


async def _exchange(session: aiohttp.ClientSession, url: str, body: bytes, seconds: float) -> HttpReply:
    if seconds <= 0:  # which would be no limit at all
        raise RpcUnavailable("the node did not answer in time")
    bare, credentials = _without_credentials(url)
    try:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with session.post(
            bare, data=body, headers=credentials, allow_redirects=False, timeout=timeout
        ) as response:
            reply = await response.content.read(_REPLY_SIZE_BYTES)
            while not response.content.at_eof():
                reply += await response.content.read(_REPLY_SIZE_BYTES)
                if len(reply) > _REPLY_SIZE_BYTES:
                    raise RpcUnavailable("the node's reply is too large")
            return HttpReply(response.status, reply, response.headers.get("Location", ""))
    except TimeoutError as error:
        raise RpcUnavailable("the node did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:  # the message may hold a URL with a key in it
        msg = f"the node cannot be reached ({type(error).__name__})"
        is_broken_off = isinstance(error, _BROKEN_OFF) and not isinstance(error, aiohttp.ClientConnectorError)
        raise (_BrokenOffError if is_broken_off else RpcUnavailable)(msg) from error


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL as it is asked, and the header with what its user and password were."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, {"Authorization": "Basic " + b64encode(credentials.encode()).decode()}


def _target(url: str, location: str) -> str:
    """Return the URL that a redirect leads to. Raises: RpcUnavailable where it must not be followed."""
    here = urlsplit(url)
    try:
        there = urlsplit(urljoin(url, location))
    except ValueError:
        raise RpcUnavailable("the node redirects to nowhere") from None
    is_same_host = there.hostname == here.hostname
    is_safe = there.scheme == "https" or (there.scheme == "http" and here.scheme == "http" and is_same_host)
    if not location or not there.hostname or not is_safe:
        raise RpcUnavailable(f"the node redirects to {there.scheme}://{there.hostname or ''}, which is not followed")
    if is_same_host and "@" in here.netloc and "@" not in there.netloc:
        there = there._replace(netloc=f"{here.netloc.rpartition('@')[0]}@{there.netloc}")
    return urlunsplit(there)
