"""Is the caller still there? What its socket knows, and a question that only a caller who is there survives.

A caller who closes its connection and one who merely sends no more (half-closed, RFC 9112 9.6) look alike: both have
sent FIN. The first gets its request cancelled, the second its answer. To tell them apart one `100 Continue` is sent,
which every HTTP/1.1 client must discard where it did not ask for it (RFC 9110 15.2.1): the system of a caller who left
answers it with a reset. HTTP/1.0 has no such line; there a half-closed caller is believed. In the middle of an answer
nothing can be asked: what is sent next shows who left, and where nothing is, the system's own question (TCP keepalive),
once the caller's system has forgotten the connection, which takes Linux a minute. What this module does not do: end
anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from enum import Enum, auto
from typing import Final

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# How long a reset may take to come back before a silent caller is believed.
PROOF_SECONDS: Final = 0.5
SYSTEM_ASKS_SECONDS: Final = 5
# What is read of an upload that its target does not take, so that an end behind it is seen: at once, and of all calls
# of a listener together. A third of that, an address's share, is about what systems hold for both ends of a connection.
AHEAD_STEP_BYTES: Final = 4 * 1024 * 1024
AHEAD_ALL_BYTES: Final = 96 * 1024 * 1024

_SENDS_NO_MORE: Final = getattr(select, "POLLRDHUP", 0)  # Linux's; elsewhere an end is seen when it is read
# When the system asks first, and again; elsewhere its own times hold.
_SYSTEM_ASKS: Final = tuple(
    getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL") if hasattr(socket, name)
)
# `tcpi_bytes_acked` of Linux's `struct tcp_info`, behind 8 bytes, 24 numbers of 4 and two of 8.
_TCP_INFO: Final = getattr(socket, "TCP_INFO", -1)
_TAKEN_AT_BYTE: Final = 120
_TAKEN: Final = struct.Struct("=Q")
_IS_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Presence(Enum):
    """States of a caller, as far as they are known."""

    THERE = auto()
    SILENT = auto()  # it sends no more: half-closed, or gone and not yet asked
    GONE = auto()


class Attendance:
    """One caller. `is_silent`: its end was read. `socket_number` is below zero once the connection is lost."""

    __slots__ = ("_asked_seconds", "_poll", "_socket", "_system_asks", "is_believed", "is_silent", "socket_number")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._socket: socket.socket = transport.get_extra_info("socket")
        self.socket_number: int = self._socket.fileno()
        self._poll: select.poll | None = None  # made when it is needed: most connections never are
        self._asked_seconds: float | None = None
        self._system_asks = False
        self.is_silent = False
        self.is_believed = False  # silent, asked, and still there

    def look(self) -> Presence:
        """Return what the socket knows now, read or not; a system call of about a microsecond."""
        if self.socket_number < 0:
            return Presence.GONE
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.socket_number, _SENDS_NO_MORE)
        seen = self._poll.poll(0)
        if not seen:
            return Presence.SILENT if self.is_silent else Presence.THERE
        return Presence.GONE if seen[0][1] & _IS_GONE else Presence.SILENT

    def taken_bytes(self) -> int:
        """How much the caller's system has taken of all that was sent on the connection; below 0 where nobody tells."""
        try:
            known = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TAKEN_AT_BYTE + _TAKEN.size)
            return int(_TAKEN.unpack_from(known, _TAKEN_AT_BYTE)[0])
        except (OSError, struct.error):
            return -1

    def ask(self, transport: asyncio.Transport, now_seconds: float, *, is_http_11: bool) -> None:
        """Ask a silent caller, once. Only between two answers or before one has begun."""
        if self._asked_seconds is None:
            self._asked_seconds = now_seconds
            if is_http_11:
                transport.write(CONTINUE)

    def let_system_ask(self) -> None:
        """Have the system ask a silent caller from now on, again and again: in the middle of an answer."""
        if not self._system_asks:
            self._system_asks = True
            with contextlib.suppress(OSError):  # the connection is lost
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option in _SYSTEM_ASKS:
                    self._socket.setsockopt(socket.IPPROTO_TCP, option, SYSTEM_ASKS_SECONDS)

    def believe(self, now_seconds: float) -> bool:
        """Return True if a silent caller is believed there: it was asked, and had the time to turn out gone."""
        if self._asked_seconds is not None and now_seconds - self._asked_seconds >= PROOF_SECONDS:
            self.is_believed = True
        return self.is_believed

    def end(self) -> None:
        """The connection is lost, and its socket's number another's."""
        self._poll, self.socket_number = None, -1
