"""The listener's protocol: uvicorn's own, with heads read strictly and slow callers given up (security A-40, A-58).

Holds for every path: a request whose length, host, path or payment two readers could understand differently is
refused with section 7's body before anything sees it, and its connection is closed. What is accepted goes to the ASGI
application. Knows no route, no payment and no way to render an error (`Render` is passed in).

    uvicorn.Config(app, http=strict_protocol(render))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.forwarding import Header
from tollkeeper.core.framing import check_request_head
from tollkeeper.core.limits import REQUEST_HEAD_SIZE_BYTES
from tollkeeper.edge.joined_writes import JoinedWrites
from tollkeeper.edge.patience import BODY_BYTES_PER_SECOND, Patience, Sweep

# Status, headers and body of a refusal; the edge adds `Content-Length` and `Connection: close`.
Render = Callable[[ApiError], tuple[int, list[Header], bytes]]

# Bytes that bring neither head nor body to an end: chunk extensions, trailers.
CHATTER_BYTES: Final = 64 * 1024
PIPELINED_MAX: Final = 64
# A body that still comes when its request has been answered is read so far, lest a reset destroy the answer.
UNREAD_BODY_BYTES: Final = 1024 * 1024
_UPGRADE_OPTIONS: Final = frozenset({b"http2-settings", b"upgrade"})

log = structlog.get_logger("tollkeeper.edge")


@dataclass(frozen=True, slots=True)
class Listener:
    """What all connections of one listener share."""

    render: Render
    patience: Patience
    sweep: Sweep


class StrictProtocol(HttpToolsProtocol):
    """One caller's connection. Made by `strict_protocol`, which sets what all connections of a listener share.

    A request is in its head (`_in_head`), then in its body (`_in_body`), then complete; answers are uvicorn's affair.
    `_refusal` is set once, and from then on nothing that comes in is read.
    """

    listener: ClassVar[Listener]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._in_body = False
        self._without_upgrade = False  # between a head that asks for an upgrade and its second reading without
        self._head_bytes = 0
        self._chatter_bytes = 0
        self._unread_bytes = 0
        self._unanswered = 0  # requests that were accepted and have no whole answer yet
        self._is_accepted = False  # the newest request was accepted
        self._refusal: ApiError | None = None
        self._is_draining = False
        # For `check_patience`
        self._head_seconds = 0.0
        self._body_seconds = 0.0
        self._stuck_seconds = 0.0
        self._unsent_bytes = 0
        self._close_due: float | None = None

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.listener.sweep.watch(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.listener.sweep.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came in; refuse it at the first byte that breaks a rule."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        unread: bytes | None = data
        while unread is not None:
            unread = self._read(unread)

    def _read(self, data: bytes) -> bytes | None:
        """Parse `data`; returns what is to be parsed next, if anything."""
        was_in_head = self._in_head
        upgrade_at: int | None = None
        self._chatter_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            upgrade_at = upgrade.args[0]
        except HttpParserError as error:
            self._refuse(_reason(error))
            return None
        if upgrade_at is not None:
            return self._head_without_upgrade() + data[upgrade_at:]
        if self._in_head:
            # A head that began in these bytes is measured by its parts (`on_header`); of an endless part only
            # the bytes are known.
            self._chatter_bytes = self._chatter_bytes if was_in_head else 0
            if self._chatter_bytes > REQUEST_HEAD_SIZE_BYTES:
                self._refuse(_head_too_large())
        elif self._in_body and self._chatter_bytes > CHATTER_BYTES:
            self._refuse(_malformed("there is too much beside the body"))
        return None

    # What the parser calls. ApiError stops it; `data_received` takes it from there.

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._head_seconds = 0.0

    def on_url(self, url: bytes) -> None:
        """A part of the request target. Raises HEADERS_TOO_LARGE."""
        self._head_bytes += len(url)
        if self._head_bytes > REQUEST_HEAD_SIZE_BYTES:
            raise _head_too_large()
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head, or a trailer, which is dropped. Raises HEADERS_TOO_LARGE."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > REQUEST_HEAD_SIZE_BYTES:
            raise _head_too_large()
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head and accept it. Raises INVALID_PARAMETER, RATE_LIMITED."""
        parser = self.parser
        self._in_head, self._in_body = False, True
        self._is_accepted = False
        self._head_bytes = self._chatter_bytes = self._unread_bytes = 0
        self._body_seconds = 0.0
        method = parser.get_method()
        check_request_head(method, self.url, parser.get_http_version(), self.headers)
        if parser.should_upgrade():
            # No protocol but this one is spoken here. The parser would now take the body for that other protocol.
            self._without_upgrade = True
            return
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ApiError(Code.RATE_LIMITED, "too many requests wait on this connection")
        super().on_headers_complete()
        self.cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]  # all that it uses
        self._unanswered += 1
        self._is_accepted = True
        if self._is_draining:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A part of the body. Raises PAYLOAD_TOO_LARGE for what nobody reads any more."""
        self._chatter_bytes = 0
        self._body_seconds = max(0.0, self._body_seconds - len(body) / BODY_BYTES_PER_SECOND)
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > UNREAD_BODY_BYTES:
                raise ApiError(Code.PAYLOAD_TOO_LARGE, "the request was answered before its body came")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if not self._without_upgrade:
            self._in_body = False
            super().on_message_complete()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        """An answer was written: wait for the next request, or refuse the one that was waiting for its turn."""
        self._unanswered -= 1
        super().on_response_complete()
        self._head_seconds = 0.0
        self._send_refusal_in_turn()

    def shutdown(self) -> None:
        """The server stops: finish what was accepted, and what a caller has sent without knowing better."""
        self._is_draining = True
        if self._unanswered:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(self.listener.patience.last_request_seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        # Half a head is waited for; `check_patience` bounds that.
        if not self._unanswered and not self._in_head and self._close_due is None:
            self.transport.close()

    # An upgrade that is asked for and not given

    def _head_without_upgrade(self) -> bytes:
        """The head that was read, as if no upgrade had been asked for, for a parser that has read nothing yet.

        RFC 9110 7.8 lets a server ignore the request; clients that prefer HTTP/2 ask on every plain connection.
        """
        parser = self.parser
        lines = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), self.url, parser.get_http_version().encode("ascii"))]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() not in _UPGRADE_OPTIONS)  # noqa: PLW2901 - the same header
            if name not in _UPGRADE_OPTIONS:
                lines.append(b"%b: %b\r\n" % (name, value))
        self._without_upgrade = self._in_body = False
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"".join([*lines, b"\r\n"])

    # Refusing

    def _refuse(self, error: ApiError) -> None:
        """Read no more; answer with `error` after the requests that were accepted before it."""
        self._refusal = error
        log.info("request_refused", code=error.code.value, reason=error.message)
        if self._in_body and self._is_accepted and not self.cycle.response_complete:
            self._withdraw_request()
        self._send_refusal_in_turn()

    def _withdraw_request(self) -> None:
        """Take the newest request, whose body broke a rule, back from whoever handles it."""
        cycle = self.cycle
        if cycle.response_started:
            self.transport.abort()  # half an answer is out: nothing can be said in order any more
        for entry in [entry for entry in self.pipeline if entry[0] is cycle]:
            self.pipeline.remove(entry)
        self._unanswered -= 1
        cycle.disconnected = True
        cycle.message_event.set()

    def _send_refusal_in_turn(self) -> None:
        if self._refusal is None or self._unanswered or self._close_due is not None or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        status, headers, body = self.listener.render(self._refusal)
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join([*lines, body]))
        self._close_due = self.loop.time() + self.listener.patience.linger_seconds
        if self.transport.can_write_eof():
            # Closing over bytes that were not read would reset the connection, and the caller would not see why.
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    # Giving up

    def check_patience(self, now_seconds: float, passed_seconds: float) -> None:
        """See `patience.Watched`. What a caller who is too slow gets is a closed connection."""
        patience = self.listener.patience
        self._head_seconds += 0.0 if self._unanswered else passed_seconds
        self._body_seconds += passed_seconds if self._is_waiting_for_body() else 0.0
        idle_seconds = self.timeout_keep_alive if self._is_accepted and not self._in_head else 0
        unsent_bytes = self.transport.get_write_buffer_size()
        is_stuck = 0 < self._unsent_bytes <= unsent_bytes
        self._unsent_bytes = unsent_bytes
        self._stuck_seconds = self._stuck_seconds + passed_seconds if is_stuck else 0.0
        if (
            (self._close_due is not None and now_seconds >= self._close_due)
            or self._head_seconds >= patience.head_seconds + idle_seconds
            or self._body_seconds >= patience.body_seconds
            or self._stuck_seconds >= patience.read_seconds
        ):
            self.transport.abort()

    def _is_waiting_for_body(self) -> bool:
        if not (self._in_body and self._is_accepted) or self._refusal is not None:
            return False
        return not self.flow.read_paused and not self.cycle.waiting_for_100_continue


def strict_protocol(render: Render, patience: Patience | None = None) -> type[StrictProtocol]:
    """The protocol class of one listener, for `uvicorn.Config(http=...)`; `render` makes the answers to refusals."""
    chosen = patience or Patience()

    class ListenerProtocol(StrictProtocol):
        listener = Listener(render, chosen, Sweep(chosen.sweep_seconds))

    return ListenerProtocol


def _reason(error: HttpParserError) -> ApiError:
    """Why the parser stopped: a callback of ours that refused, a fault in one, or bytes that are not HTTP."""
    cause = error.__context__
    if isinstance(cause, ApiError):
        return cause
    if cause is None or isinstance(cause, HttpParserError):
        return _malformed(str(cause or error))
    log.error("request_callback_failed", exc_info=cause)
    return ApiError(Code.INTERNAL_ERROR, "the request could not be read")


def _malformed(reason: str) -> ApiError:
    return ApiError(Code.INVALID_PARAMETER, f"the request is not valid HTTP: {reason}", details={"field": "request"})


def _head_too_large() -> ApiError:
    details = {"limitBytes": REQUEST_HEAD_SIZE_BYTES}
    return ApiError(Code.HEADERS_TOO_LARGE, "the request head is too large", details=details)
