"""The listener's protocol: uvicorn's own, with heads read strictly and slow callers given up (security A-40, A-58).

Holds for every path: a request whose length, host, path or payment two readers could understand differently is
refused with section 7's body, seen by nothing, and its connection closed. What is accepted goes to the listener's
`CallHandler` (`call.InboundCall`) or to the ASGI application, in the order of its coming. Knows no route or payment.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.client_addresses import plain_address, rate_key
from tollkeeper.core.http.heads import RequestHead, read_head
from tollkeeper.core.limits import HEADERS_MAX, REQUEST_HEAD_SIZE_BYTES
from tollkeeper.edge.server.call import CallHandler, InboundCall, Place
from tollkeeper.edge.server.caller_connection import CallerConnection
from tollkeeper.edge.server.client_liveness import AHEAD_STEP_BYTES, Attendance, Presence
from tollkeeper.edge.server.joined_writes import JoinedWrites
from tollkeeper.edge.server.malformed import check_trailer, head_too_large, malformed, reason_of, without_upgrade
from tollkeeper.edge.server.request_pieces import is_first_line
from tollkeeper.edge.shared.turns import REQUESTS_AT_ONCE
from tollkeeper.edge.shared.whole_messages import whole_requests

# Bytes that bring neither head nor body to an end: chunk extensions, trailers, an endless header.
CHATTER_BYTES: Final = 64 * 1024
_LAST_REQUEST_SECONDS: Final = 0.3  # for what was sent just before the server stopped
_SURELY_SMALL_BYTES: Final = REQUEST_HEAD_SIZE_BYTES - HEADERS_MAX  # a line's end may be a byte shorter
PIPELINED_MAX: Final = 64
READ_AHEAD_MAX: Final = 4
UNREAD_BODY_BYTES: Final = 1024 * 1024  # read behind an answer, to keep the connection

log = structlog.get_logger("tollkeeper.edge")


class StrictProtocol(CallerConnection):
    """One caller's connection, of a class that `protocol_class.strict_protocol` makes for each listener.

    A request is in its head (`_in_head`), then in its body (`_in_body`), then complete; answers are uvicorn's affair.
    `_refusal` is set once; from then on, behind the last answer and in `wait_turn`, nothing is read (`_is_deaf`).
    """

    __slots__ = ()

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin to read from a caller's new connection."""
        super().connection_made(transport)
        self._attendance = Attendance(transport)
        if self.client is not None:
            self.client = (plain_address(self.client[0]), self.client[1])
            self.peer = sys.intern(self.client[0])
        sweep = self.listener.sweep
        is_crowded = self._attendance.socket_number >= self.listener.crowded_from
        if is_crowded and not sweep.make_room(self.loop.time()):
            transport.abort()  # what is left is for those who are served: their targets, files, the database
        else:
            sweep.watch(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell every call that waits on it."""
        self.listener.sweep.forget(self)
        self._attendance.end()
        self.give_lent_back()
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._current, *waiting):
            if isinstance(cycle, InboundCall):
                cycle.lose()
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # as `asyncio.Protocol` has it
        """Give a caller that sends no more its answers, and ask it whether it is there."""
        if self._lingering is not None or not self.transport.can_write_eof():
            return False  # all was said; TLS ends both ways
        self.go_on(sys.maxsize)
        self._attendance.is_silent = True
        newest: Any = self.cycle  # None where the first head of all was refused
        is_cut_short = self._in_head or (self._in_body and newest is not None and not newest.response_complete)
        if is_cut_short and self._refusal is None:
            self._refuse(malformed("it ends before it is complete"))
        if not self._unanswered:
            return False
        if not is_cut_short and self._refusal is None:
            self.cycle.keep_alive = False
        self.ask_caller()
        return True

    def resume_writing(self) -> None:
        """Send a caller that reads again the answers that wait for it."""
        super().resume_writing()
        self._start_next()

    def data_received(self, data: bytes) -> None:
        """Read what came in; refuse it at the first byte that breaks a rule."""
        if self._is_deaf:
            self.overhear(data)
            return
        is_between = not (self._in_head or self._in_body or self._unanswered or self._pieces.line)
        if is_between and (calls := self.listener.calls) is not None:
            head = whole_requests.read(data)
            if head is not None and self._take_whole(calls, head):
                return
        self._begun = 0
        self.read_all(data)

    def _take_whole(self, calls: CallHandler, head: RequestHead) -> bool:
        """Answer a plain request, or begin its call; False where it is the application's, or nothing may begin now."""
        if self._is_draining or self.flow.write_paused:
            return False
        place = calls.place_of(head.target)
        if place is None:
            return False
        answered = calls.at_once(head, place, self.peer)
        if answered is None:
            self._unanswered += 1
            call = InboundCall.accepted(self, calls, head, place)
            self._current = self.cycle = call  # type: ignore[assignment]  # as below
        self._is_accepted = self._is_http_11 = True
        self._head_seconds = 0.0
        if answered is None:
            call.begin()
        else:
            self.transport.write(answered.answer)
            self.listener.count(answered)
        return True

    def read_all(self, data: bytes, at_once: int = REQUESTS_AT_ONCE) -> None:
        """Read the requests in `data`, `at_once` of them; the rest waits for its turn."""
        unread: bytes | None = data
        # What stands behind a request whose answer has ended the connection is nobody's.
        while unread and not (self._is_deaf or self.transport.is_closing()):
            if self._begun >= at_once:
                self.wait_turn(unread)
                return
            unread = self._read(unread)

    def _read(self, data: bytes) -> bytes | None:
        """Read the first piece of `data`; returns what is to be read next, if anything."""
        pieces, was_in_head = self._pieces, self._in_head
        is_between = not (was_in_head or self._in_body)
        end = pieces.begin(data) if is_between else pieces.cut(data)
        piece = data if end == len(data) else data[:end]
        if is_between:
            if end > CHATTER_BYTES and piece[:1] in (b"\r", b"\n"):
                self._refuse(malformed("there is too much before it"))
                return None
        elif was_in_head:
            pieces.go_on(piece)
        upgrade_at: int | None = None
        try:
            self._chatter_bytes += end
            self.parser.feed_data(piece)
            if self._in_head or self._in_body or self._came is not None:
                self._go_on(end, was_in_head=was_in_head)
        except HttpParserUpgrade as upgrade:
            upgrade_at = upgrade.args[0]
        except HttpParserError as error:
            self._refuse(reason_of(error))
        if self._refusal is not None:
            return None
        unread = data[end:]
        return unread if upgrade_at is None else self._read_without_upgrade() + piece[upgrade_at:] + unread

    def _go_on(self, size_bytes: int, *, was_in_head: bool) -> None:
        """A piece of so many bytes was parsed, and the request is not complete, or a part of its body came."""
        if self._came is not None:
            self._hand_on_body()
        if self._in_head:
            # A head is measured by its parts (`_check_size`); of an endless part only the bytes are known.
            if not was_in_head:
                self._chatter_bytes = size_bytes
            try:
                self._check_size()
            except ApiError as error:
                self._refuse(error)
                return
            if self._chatter_bytes > CHATTER_BYTES:
                self._refuse(head_too_large())
        elif self._in_body and self._chatter_bytes > CHATTER_BYTES:
            self._refuse(malformed("there is too much beside the body"))

    # What the parser calls. ApiError stops it; `_read` takes it from there.

    def on_message_begin(self) -> None:
        """The first byte of a head. The ASGI scope is made when it is known to be needed."""
        self.url = b""
        self.headers = []
        self._in_head = True
        self._begun += 1
        self._head_bytes = 0
        self._head_seconds = 0.0

    def on_url(self, url: bytes) -> None:
        """A part of the request target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head, or a trailer, which is dropped. Raises HEADERS_TOO_LARGE, INVALID_PARAMETER."""
        if self._in_head:
            self.headers.append((name, value))
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > REQUEST_HEAD_SIZE_BYTES or len(self.headers) >= HEADERS_MAX:
            raise head_too_large(len(self.headers))
        check_trailer(name)

    def _check_size(self) -> None:
        """Measure the head as far as it has come. Raises HEADERS_TOO_LARGE."""
        headers = self.headers
        size_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size_bytes > REQUEST_HEAD_SIZE_BYTES or len(headers) > HEADERS_MAX:
            raise head_too_large(len(headers) - 1)  # without the last one, which was one too many

    def on_headers_complete(self) -> None:
        """Check the head and accept it. Raises INVALID_PARAMETER, RATE_LIMITED."""
        parser = self.parser
        self._in_head, self._in_body = False, True
        self._is_accepted = False
        if self._chatter_bytes > _SURELY_SMALL_BYTES or len(self.headers) > HEADERS_MAX:
            self._check_size()
        self._head_bytes = self._chatter_bytes = 0
        self._body_seconds = 0.0
        method = parser.get_method()
        first_line = self._pieces.take_line()
        is_plain = first_line.startswith(b"%b %b HTTP/1.1\r\n" % (method, self.url))
        version = "1.1" if is_plain else parser.get_http_version()
        self._is_http_11 = is_http_11 = version == "1.1"
        head = read_head(method, self.url, version, self.headers)
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ApiError(Code.RATE_LIMITED, "too many requests wait on this connection")
        if not (is_plain or is_first_line(first_line, method, self.url, version)):
            raise malformed("its first line is not method, target and version with one space between them")
        if parser.should_upgrade():
            # No protocol but this one is spoken here. The parser would now take the body for that other protocol.
            if self._without_upgrade:  # this is the second reading: a third would be as this one, for ever
                raise malformed("it asks for an upgrade in a way that cannot be ignored")
            self._without_upgrade = True
            return
        self._without_upgrade = False
        keep_alive = is_http_11 and parser.should_keep_alive()
        length_bytes = head.content_length
        if length_bytes != 0 or b"expect" in head.header:
            self._begin_body(head, keep_alive=keep_alive)
        else:
            self._in_body = self._closes_early = self.expect_100_continue = False
            self._pieces.end_body()
        calls = self.listener.calls
        if calls is not None and (place := calls.place_of(self.url)) is not None:
            self._accept_call(calls, head, place, keep_alive=keep_alive and not self._closes_early)
        else:
            self.headers = head.headers
            self._accept_for_asgi()

    def _begin_body(self, head: RequestHead, *, keep_alive: bool) -> None:
        """A body follows, or its caller speaks of one."""
        length_bytes = head.content_length
        # HTTP/1.0 knows no answer before the answer (RFC 9110 10.1.1).
        expects = head.header.get(b"expect", b"").lower() == b"100-continue" and self._is_http_11
        self.expect_100_continue = expects
        self._in_body = length_bytes != 0
        self._pieces.begin_body(length_bytes)
        # A caller who waits to be asked for its body may send it or not, once it is answered.
        is_long = length_bytes is None or length_bytes > UNREAD_BODY_BYTES or expects
        self._closes_early = keep_alive and is_long and self._in_body

    def _accept_call(self, calls: CallHandler, head: RequestHead, place: Place, *, keep_alive: bool) -> None:
        """Begin the call, or let it wait for its turn and for a caller who reads."""
        keep_alive, expects = keep_alive and not self._is_draining, self.expect_100_continue
        call = InboundCall.accepted(self, calls, head, place, keep_alive, self._is_http_11, expects)
        self.cycle = call  # type: ignore[assignment]  # uvicorn asks it only what `InboundCall` names
        self._unanswered += 1
        self._is_accepted = True
        if self._current is not None or self.pipeline or self.flow.write_paused:
            if self.flow.write_paused or len(self.pipeline) >= READ_AHEAD_MAX:
                self.flow.pause_reading()  # below it reading goes on, lest nobody learn that the caller left
            self.pipeline.appendleft((self.cycle, self.app))
        elif not self.transport.is_closing():
            self._current = call
            call.begin()

    def _accept_for_asgi(self) -> None:
        url, headers, expects_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects_continue
        self.scope["headers"] = headers
        self.scope["state"]["may_have_left"] = self.may_have_left
        super().on_headers_complete()
        has_body = self.parser.get_method() != b"HEAD"
        joined = JoinedWrites(self.transport, self.loop, self.end, has_body=has_body)
        self.cycle.transport = joined  # type: ignore[assignment]  # all that it uses
        self._unanswered += 1
        self._is_accepted = True
        if self._is_draining or self._closes_early:
            self.cycle.keep_alive = False

    def _keep_after_all(self) -> None:
        """Enough of the newest body has come."""
        self._closes_early = False
        if not (self.cycle.response_started or self._is_draining):
            self.cycle.keep_alive = True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401 - uvicorn's
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    def _start_next(self) -> None:
        """Give the next requests their turn, one after the other; in a loop, since a call may be answered at once."""
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self.pipeline and self._current is None and not self.flow.write_paused:
                if self.transport.is_closing() or not self.is_awaited():
                    return
                cycle: Any
                cycle, app = self.pipeline.pop()
                if isinstance(cycle, InboundCall):
                    self._current = cycle
                    cycle.begin()
                else:
                    self._start_asgi_task(cycle, app)
        finally:
            self._is_starting = False

    def _hand_on_body(self) -> None:
        if (body := self.body_that_came()) is None:
            return
        self._chatter_bytes = 0
        self._is_fed = True
        self._body_seconds = max(0.0, self._body_seconds - len(body) / self.listener.patience.body_bytes_per_second)
        if self._closes_early and (left := self._pieces.body_left_bytes) is not None and left <= UNREAD_BODY_BYTES:
            self._keep_after_all()
        cycle: Any = self.cycle
        if isinstance(cycle, InboundCall):
            cycle.feed(body)
        else:
            self.hand_to_application(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if not self._without_upgrade:
            if self._in_body:
                if self._came is not None:
                    self._hand_on_body()
                self._in_body = False
                self._pieces.end_body()
            if self._closes_early:
                self._keep_after_all()
            cycle: Any = self.cycle
            if isinstance(cycle, InboundCall):
                cycle.feed_end()
            else:
                super().on_message_complete()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        """An answer was written. No timer for the next request as in uvicorn: `check_patience` costs less."""
        self._current = None
        self._unanswered -= 1
        self._head_seconds = 0.0
        if self._lent_bytes:
            self.give_lent_back()
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_next()
        if self._refusal is not None:
            self._send_refusal_in_turn()

    def shutdown(self) -> None:
        """The server stops: finish what was accepted, and what a caller has sent without knowing better."""
        self._is_draining = True
        if self._lingering is not None:
            self._lingering.hurry(self.loop.time())
        elif self._unanswered:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(_LAST_REQUEST_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        # Half a head is waited for; `check_patience` bounds that.
        if not self._unanswered and not self._in_head and self._lingering is None:
            if self._in_body and not self.transport.is_closing():  # a caller may have left meanwhile
                self.linger()  # for the rest of what was answered early: a reset would destroy the answer
            else:
                self.transport.close()

    def _read_without_upgrade(self) -> bytes:
        """The head that was read, as if no upgrade had been asked for, for a parser that has read nothing yet."""
        parser = self.parser
        headers = [(name.lower(), value.strip(b" \t")) for name, value in self.headers]
        head = without_upgrade(parser.get_method(), self.url, parser.get_http_version(), headers)
        self._in_body, self.parser = False, HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return head

    # Refusing

    def _refuse(self, error: ApiError) -> None:
        """Read no more; answer with `error` after the requests that were accepted before it."""
        self._refusal, self._is_deaf, self._came = error, True, None
        log.info("request_refused", code=error.code.value, reason=error.message)
        if self._in_body and self._is_accepted and not self.cycle.response_complete:
            self._withdraw_request(error)
        self._send_refusal_in_turn()

    def _withdraw_request(self, error: ApiError) -> None:
        """Take the newest request, whose body broke a rule, back from whoever handles it, and may be paid for it."""
        cycle: Any = self.cycle
        if isinstance(cycle, InboundCall) and cycle.is_begun:
            cycle.keep_alive = False  # its own answer will say so, unless that has begun
            # Whoever has left is no caller to be told: `_look_for_caller`, unless an answer has begun.
            if cycle.response_started or not self._attendance.is_silent:
                cycle.break_body(error)
            return
        if cycle.response_started:
            self.transport.abort()  # half an answer is out: nothing can be said in order any more
        if self._current is cycle:
            self._current = None
        for entry in [entry for entry in self.pipeline if entry[0] is cycle]:
            self.pipeline.remove(entry)
        self._unanswered -= 1
        if isinstance(cycle, InboundCall):
            cycle.lose()
        # An application's next look at the body would ask for it.
        cycle.disconnected, cycle.waiting_for_100_continue = True, False
        cycle.message_event.set()

    def _send_refusal_in_turn(self) -> None:
        if self._refusal is None or self._unanswered or self._lingering is not None or self.transport.is_closing():
            return
        method = self._pieces.line[:5] if self._in_head else self.parser.get_method() + b" " if self._in_body else b""
        self.transport.write(self.listener.refusal_of(self._refusal, has_body=method != b"HEAD "))
        self.linger()

    def end(self) -> None:
        """The last answer is written: close, gently where the caller has more to send, or may not know that it is."""
        may_be_told = self.transport.can_write_eof() or self._in_body or self._is_draining or bool(self.pipeline)
        self._unanswered -= len(self.pipeline)  # none of those was begun
        self.pipeline.clear()
        if self._attendance.is_silent or self.transport.is_closing() or not may_be_told:
            self.transport.close()
        else:
            self.linger()

    # Giving up

    def check_patience(self, now_seconds: float, passed_seconds: float) -> int:
        """Close the connection if its caller is too slow. Returns how many bytes wait for the caller."""
        patience = self.listener.patience
        unsent_bytes = self.look_at_reading(passed_seconds)
        if self._lent_bytes and isinstance(self._current, InboundCall) and not self._current.is_body_paused:
            self.give_lent_back()  # its target has taken what was ahead
        # Whoever still takes an answer owes no request; how slowly he may do that was looked at just now.
        owes_request = not (self._unanswered or unsent_bytes or self._in_body)
        self._head_seconds += passed_seconds if owes_request else 0.0
        self.look_at_body(passed_seconds, unsent_bytes)
        is_between = self._is_accepted and not self._in_head
        idle_seconds = self.timeout_keep_alive if is_between else 0
        if (
            (self._lingering is not None and self._lingering.is_over(now_seconds, unsent_bytes))
            or self._head_seconds >= patience.head_seconds + idle_seconds
            or self._body_seconds >= patience.body_seconds
            or self._stuck_seconds >= patience.read_seconds
        ):
            self.cut()
        elif self._unanswered and (self._attendance.is_silent or self.flow.read_paused):
            self._look_for_caller(now_seconds)
        elif is_between and not self._unanswered and self._lingering is None:
            if self._head_seconds >= idle_seconds:
                self.transport.close()
            elif not self._in_body:
                self.forget_request()
        return unsent_bytes

    # Is the caller there?

    def _look_for_caller(self, now_seconds: float) -> None:
        """A caller who is not being read, or has sent its last byte, is looked for; one who left ends its calls."""
        presence = self._attendance.look()
        if presence is Presence.GONE:
            self.transport.abort()
        elif presence is Presence.SILENT:
            self.ask_caller()
            if self._attendance.believe(now_seconds):
                is_its_body = self._in_body and self._is_accepted  # else of a head that was refused behind it
                if self._refusal is not None and is_its_body and isinstance(self.cycle, InboundCall):
                    self.cycle.break_body(self._refusal)
                self._start_next()
        elif self._in_body and not self._is_fed and isinstance(self._current, InboundCall):
            self._read_ahead(self._current)
        self._is_fed = False

    def _read_ahead(self, call: InboundCall) -> None:
        """Read some of a body that its target does not take: the caller's end may stand behind it."""
        if call.is_body_paused and self.listener.ahead.take(rate_key(self.peer), AHEAD_STEP_BYTES):
            self._lent_bytes += AHEAD_STEP_BYTES
            call.read_ahead(AHEAD_STEP_BYTES)
