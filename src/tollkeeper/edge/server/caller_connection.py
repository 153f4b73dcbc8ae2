"""State of a caller's connection while requests come and go, in less than a kibibyte when none does.

Its fields are slots: uvicorn's protocol keeps a dictionary for each connection, which with these in it would be three
times as large, for as many connections as are open. `protocol` gives the fields their meaning for a request.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.http.client_addresses import rate_key
from tollkeeper.core.json_types import JsonObject
from tollkeeper.edge.server.call import InboundCall
from tollkeeper.edge.server.client_liveness import Attendance, Presence
from tollkeeper.edge.server.delayed_close import Lingering
from tollkeeper.edge.server.listener import Listener
from tollkeeper.edge.server.request_pieces import Pieces
from tollkeeper.edge.server.timeouts import BEHIND_SECONDS
from tollkeeper.edge.shared.turns import PARTS_AT_ONCE, REQUESTS_AT_ONCE, read_on, rest

_NEVER_ASKED_SECONDS: Final = 2.0


class CallerConnection(HttpToolsProtocol):
    """One caller's connection before anything came."""

    listener: ClassVar[Listener]

    __slots__ = (
        "_attendance",
        "_begun",
        "_body_seconds",
        "_came",
        "_chatter_bytes",
        "_closes_early",
        "_current",
        "_head_bytes",
        "_head_seconds",
        "_in_body",
        "_in_head",
        "_is_accepted",
        "_is_deaf",
        "_is_draining",
        "_is_fed",
        "_is_http_11",
        "_is_starting",
        "_lent_bytes",
        "_lingering",
        "_pieces",
        "_refusal",
        "_slow_seconds",
        "_stuck_seconds",
        "_taken_bytes",
        "_unanswered",
        "_unread",
        "_unsent_bytes",
        "_without_upgrade",
        "peer",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: JsonObject,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.peer = ""  # its address
        self._in_head = self._in_body = False
        self._without_upgrade = False  # between a head that asks for an upgrade and its second reading without
        self._begun = 0  # requests whose first byte was in the data that is being read
        self._head_bytes = self._chatter_bytes = 0
        self._unanswered = 0  # requests that were accepted and have no whole answer yet
        self._current: Any = None  # the one of them that is being answered
        self._is_starting = False
        self._is_accepted = False  # the newest request was accepted
        self._is_http_11 = True  # the newest request
        self._refusal: ApiError | None = None
        self._is_deaf = self._is_draining = False
        self._unread = b""  # of what came, while it waits for its turn
        self._closes_early = False  # an answer before more of the newest body has come closes the connection
        self._pieces = Pieces()
        self._attendance: Attendance
        self._unsent_bytes = 0  # by the last `check_patience`
        self._lent_bytes = 0  # read ahead of an upload that its target does not take
        self._is_fed = False  # since the last sweep
        self._came: list[bytes] | None = None  # of the body, and not yet handed on
        self._head_seconds = self._body_seconds = self._stuck_seconds = self._slow_seconds = 0.0
        self._taken_bytes = 0  # of all answers, when something was last seen waiting
        self._lingering: Lingering | None = None

    def spare_seconds(self) -> float | None:
        """Return for how long nobody has waited for anything here, to compare with others; None if somebody waits.

        Nobody waits between two requests, in a head, and behind the last answer once all of it has left. A connection
        that has asked for nothing yet counts as if it had waited longer than one that has asked. So does one that got
        its final answer and does not end. A caller that has fallen behind does not count as waiting.
        """
        behind_seconds = self.behind_seconds()
        if behind_seconds >= BEHIND_SECONDS:
            return behind_seconds
        if self._unanswered or self.transport.get_write_buffer_size():
            return None
        is_between = self._is_accepted and self._lingering is None
        return self._head_seconds + (0.0 if is_between else _NEVER_ASKED_SECONDS)

    def behind_seconds(self) -> float:
        """Return how far the caller has fallen behind with sending a body, or with taking an answer."""
        with_body_seconds = self._body_seconds if self.is_waiting_for_body() else 0.0
        return max(self._slow_seconds, with_body_seconds)

    def cut(self) -> None:
        """End the connection at once."""
        call = self._current or self.cycle
        is_unsent = call is self._current or self.transport.get_write_buffer_size()
        if isinstance(call, InboundCall) and is_unsent:
            call.abort()
        else:
            self.transport.abort()

    def look_at_reading(self, passed_seconds: float) -> int:
        """Does the caller take his answer? Returns how many bytes wait for him.

        What his system has taken is asked of ours: what waits here stands still until some megabytes of that have left.
        He falls behind as with a body; and he is slow where the rest would take him longer than he may stand still.
        """
        unsent_bytes = self.transport.get_write_buffer_size()
        before_bytes, self._unsent_bytes = self._unsent_bytes, unsent_bytes
        if not unsent_bytes:
            self._stuck_seconds = self._slow_seconds = 0.0
            return 0
        known_bytes, self._taken_bytes = self._taken_bytes, self._attendance.taken_bytes()
        if before_bytes:
            is_known = self._taken_bytes >= 0
            taken_bytes = self._taken_bytes - known_bytes if is_known else max(0, before_bytes - unsent_bytes)
            patience = self.listener.patience
            due_per_second: float = patience.body_bytes_per_second
            self._stuck_seconds = max(0.0, self._stuck_seconds + passed_seconds - taken_bytes / due_per_second)
            due_per_second = max(due_per_second, unsent_bytes / patience.read_seconds)
            self._slow_seconds = max(0.0, self._slow_seconds + passed_seconds - taken_bytes / due_per_second)
        return unsent_bytes

    def look_at_body(self, passed_seconds: float, unsent_bytes: int) -> None:
        """Does the caller send his body? Who has an answer to take before is judged by how he takes it."""
        if unsent_bytes:
            self._body_seconds = 0.0
        elif self.is_waiting_for_body():
            self._body_seconds += passed_seconds

    def is_waiting_for_body(self) -> bool:
        """Return True if it is the caller's turn to send."""
        if not (self._in_body and self._is_accepted):
            return False
        cycle = self.cycle
        if self._is_deaf:  # he has ended in the middle of it: an answer that had begun before may not last for ever
            return self._refusal is not None and cycle is self._current and bool(cycle.response_started)
        if self.flow.read_paused:
            return False
        return bool(cycle.response_complete or not cycle.waiting_for_100_continue)  # behind its answer it owes the rest

    def give_lent_back(self) -> None:
        """Lend the rest to others: what was read ahead was taken, or is nobody's any more."""
        self.listener.ahead.give_back(rate_key(self.peer), self._lent_bytes)
        self._lent_bytes = 0

    def may_have_left(self) -> bool:
        """Tell an application whether nobody may be there to be answered, of whom it would hear at the next sweep.

        So it may be where nobody can tell: who speaks HTTP/1.0 and sends no more cannot be asked (`client_liveness`).
        """
        presence = self._attendance.look()
        return presence is Presence.GONE or (presence is Presence.SILENT and not self._is_http_11)

    def is_awaited(self) -> bool:
        """Return True if a caller waits for the next answer: for one that may be gone nothing is begun, nor charged."""
        presence = self._attendance.look()
        if presence is Presence.GONE:
            self.transport.abort()
        elif presence is Presence.SILENT and not self._attendance.is_believed:
            self.ask_caller()  # `StrictProtocol._look_for_caller` goes on
            return not self._is_http_11
        return presence is not Presence.GONE

    def ask_caller(self) -> None:
        """Ask a caller who sends no more whether it is there; the system does where an answer has begun."""
        if self._current is None or not self._current.response_started:
            self._attendance.ask(self.transport, self.loop.time(), is_http_11=self._is_http_11)
        else:
            self._attendance.let_system_ask()

    def on_body(self, body: bytes) -> None:
        """A part of the body. All that comes at once is handed on at once, in however many chunks it was sent."""
        if self._came is None:
            self._came = [body]
        else:
            self._came.append(body)

    def hand_to_application(self, body: bytes) -> None:
        """A part of the body of an ASGI request: uvicorn's own way of taking it."""
        super().on_body(body)

    def body_that_came(self) -> bytes | None:
        """Return the part of a body that came since the last call. After many tiny chunks others have their turn."""
        came, self._came = self._came, None
        if came is None:
            return None
        if len(came) > PARTS_AT_ONCE:
            rest(self.transport, self._is_paused)
        return b"".join(came)

    # Where much came at once others have their turn of the event loop first

    def read_all(self, data: bytes, at_once: int = REQUESTS_AT_ONCE) -> None:
        """Read `data`; what stands behind so many requests is to `wait_turn`."""
        raise NotImplementedError

    def wait_turn(self, unread: bytes) -> None:
        """Go on with `unread` in the loop's next turn; nothing else is heard until then."""
        self._unread, self._is_deaf = unread, True
        self.transport.pause_reading()
        self.loop.call_soon(self._take_turn)

    def go_on(self, at_once: int = REQUESTS_AT_ONCE) -> None:
        """Read what waits for its turn, if anything does."""
        unread, self._unread = self._unread, b""
        if unread and self._lingering is None:
            self._is_deaf, self._begun = False, 0
            self.read_all(unread, at_once)

    def overhear(self, data: bytes) -> None:
        """Take bytes that come while nothing is read: keep them waiting, or throw them away behind the last answer."""
        if self._unread:
            self._unread += data
            self.transport.pause_reading()
        elif self._lingering is not None and not self._lingering.discard(len(data), self.loop.time()):
            self.transport.abort()

    def _take_turn(self) -> None:
        self.go_on()
        if not self._unread:
            read_on(self.transport, self._is_paused)

    def linger(self) -> None:
        """End the connection behind its last answer, for a caller who may be sending."""
        self._is_deaf = True
        self._lingering = Lingering(self.transport, self.listener.patience, self.loop.time())
        if self._is_draining:
            self._lingering.hurry(self.loop.time())
        self.flow.resume_reading()

    def _is_paused(self) -> bool:
        return self.flow.read_paused

    def forget_request(self) -> None:
        """Let go of the last request, which was read and answered whole; its head may have 32 KiB."""
        self.cycle = self.scope = None  # type: ignore[assignment]  # as uvicorn has them before the first request
        self.headers, self.url = [], b""
