"""How a request reaches the facilitator: over HTTP, or within the process where `serve` runs gateway and hub."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import structlog

from tollkeeper.api import CORRELATION_ID, new_request_id
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.forwarding import Header, encode_request_head
from tollkeeper.core.http.heads import ResponseHead
from tollkeeper.core.http.target_addresses import FIELD, TargetUrl, check_target_url, parse_target_url
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.relay import ForwardLimits, RelayRequest, TargetUse
from tollkeeper.edge.target.spool import SpooledBody
from tollkeeper.gateway.facilitator.client import HubUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from litestar.types import ASGIApp

ANSWER_SIZE_BYTES: Final = 1024 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HOPS_MAX: Final = 3
_USE: Final = TargetUse("the gateway")  # the hub has a forwarder of its own
_NAMED_LENGTH: Final = 300
_LOG = structlog.get_logger("tollkeeper.gateway.facilitator.transports")


class HttpTransport:
    """A facilitator at a URL, by the connections that also reach targets: one costs a quarter of a usual client's."""

    is_apart = True

    def __init__(self, hub_url: str) -> None:
        self._url = hub_url
        self._way: tuple[Forwarder, TargetUrl] | None = None

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """Send a request. A payment goes where the operator said: only a GET follows a redirect.

        It does so on the same host. An answer that names another request is none: something sent that one twice. Only
        our hub repeats the name.
        """
        try:
            base = self._reachable()[1]
            lines = _lines(base, headers)
            asked = f"{base.scheme}://{base.authority}{base.path.rstrip('/')}{path}"
            for _ in range(_HOPS_MAX):
                there = parse_target_url(asked)
                if there.authority != base.authority or there.scheme != base.scheme:
                    break
                whole = f"{there.path}?{there.query}" if there.query else there.path
                head, content = await self.exchange(method, whole.encode(), lines, body, timeout_seconds)
                if (elsewhere := _redirection(head)) is None:
                    return head.status, content
                asked = urljoin(asked, elsewhere)
                if method != "GET":
                    break
        except ApiError as error:
            # Its words are those of the connections to targets.
            reason = error.message.replace(FIELD, "hub_url").replace("the target", "the hub")
            raise HubUnreachableError(reason) from error
        place = ascii(asked[:_NAMED_LENGTH])[1:-1]
        reason = f"{method} {path} is redirected to {place}: set hub_url to where the facilitator is"
        _LOG.error("facilitator_redirects", reason=reason)
        raise HubUnreachableError(reason)

    async def exchange(
        self, method: str, path_and_query: bytes, lines: Iterable[Header], body: bytes, timeout_seconds: float
    ) -> tuple[ResponseHead, bytes]:
        """The answer to a request whose head has these lines, besides its name and its body's length.

        Raises: ApiError, HubUnreachableError; ValueError for a line or a path that cannot be sent.
        """
        forwarder, base = self._reachable()
        name = new_request_id().encode()
        own = [(b"content-length", b"%d" % len(body)), (CORRELATION_ID, name)]
        head = encode_request_head(method, path_and_query, [*lines, *own])
        # From now on, what reaching it takes included: no timer besides the one of all relays.
        limits = ForwardLimits(timeout_seconds, timeout_seconds, ANSWER_SIZE_BYTES, ANSWER_SIZE_BYTES)
        answer = _AwaitedRelay(name, forwarder.pool.renew)
        relay = forwarder.relay(RelayRequest(_USE, base, method, head + body, b"", 0), answer, limits=limits)
        try:
            relay.start()
            return await answer.come
        finally:
            relay.close()

    def _reachable(self) -> tuple[Forwarder, TargetUrl]:
        """The way there, and where it leads. Raises: ApiError for a URL that is none."""
        if self._way is None:
            base = check_target_url(self._url, allow_private=True)  # the operator's own word
            self._way = Forwarder(Resolver(allow_private=True)), base
        return self._way

    async def close(self) -> None:
        """Close the connections."""
        if self._way is not None:
            self._way[0].close()


def _redirection(head: ResponseHead) -> str | None:
    """The place that an answer sends its caller to; None where it is no redirect."""
    if head.status not in _REDIRECTS:
        return None
    places = [value.decode("latin-1") for key, value in head.headers if key.lower() == b"location"]
    return places[0] if places else None


def _lines(base: TargetUrl, headers: Mapping[str, str]) -> list[Header]:
    return [
        (b"host", base.authority.encode()),
        (b"user-agent", b"tollkeeper"),
        (b"accept", b"application/json"),
        (b"accept-encoding", b"identity"),
        *((name.encode(), value.encode()) for name, value in headers.items()),
    ]


class _AwaitedRelay:
    """The owner of a relay whose answer to the request of that name is awaited.

    It fits into memory, or was refused as too large. The connection on which another one's came, and which waits for
    its next exchange by then, may stay one behind for as long as it is used: `renew` drops it.
    """

    def __init__(self, name: bytes, renew: Callable[[], None]) -> None:
        self._name = name
        self._renew = renew
        self.come: asyncio.Future[tuple[ResponseHead, bytes]] = asyncio.get_running_loop().create_future()

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        """Tell whoever waits."""
        del size_bytes
        if not isinstance(body, list):
            body.close()
            self.on_refusal(HubUnreachableError("the answer is too large"))
        elif any(key.lower() == CORRELATION_ID and value != self._name for key, value in head.headers):
            self._renew()
            self.on_refusal(HubUnreachableError("the answer is another request's"))
        elif not self.come.done():
            self.come.set_result((head, b"".join(body)))

    def on_refusal(self, error: BaseException) -> None:
        """Tell whoever waits."""
        if not self.come.done():
            self.come.set_exception(error)
            self.come.exception()  # whoever waited may be gone


class AsgiTransport:
    """A hub in this process: the same request, without a socket."""

    is_apart = False

    def __init__(self, app: ASGIApp, state: Mapping[str, str] | None = None) -> None:
        """`state`: the scope's state, which no request over a socket can bring: by it the hub knows its own gateway."""
        self._app = app
        self._state = dict(state or {})

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """Send a request within the process."""
        status = 0
        parts: list[bytes] = []
        asked = False

        async def receive() -> Any:  # noqa: ANN401 - an ASGI message
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # this client never disconnects
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:  # noqa: ANN401 - an ASGI message
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        path, _, query = path.partition("?")
        raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw_headers.append((b"content-length", str(len(body)).encode()))
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": raw_headers,
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": dict(self._state),
        }
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._app(scope, receive, send)
        except TimeoutError as error:
            raise HubUnreachableError("timeout") from error
        return status, b"".join(parts)

    async def close(self) -> None:
        """Nothing to let go of: the hub is closed by whoever opened it."""
