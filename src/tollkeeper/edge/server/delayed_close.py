"""How a connection ends whose caller may still be sending (RFC 9112 9.6, security A-58).

A connection that is closed over unread bytes is reset, and the reset destroys the answer that was on its way. So this
side ends first; what still comes is thrown away until the caller ends too, is silent, or has sent enough. Over TLS,
which cannot end one way, the caller is told by the answer only. Knows no request.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tollkeeper.core.http.timeouts import Patience

LINGER_SIZE_BYTES: Final = 64 * 1024 * 1024


class Lingering:
    """One connection's end, begun when its last answer is written."""

    __slots__ = ("_due_seconds", "_left_bytes", "_patience", "_silent_due_seconds")

    def __init__(self, transport: asyncio.Transport, patience: Patience, now_seconds: float) -> None:
        self._patience = patience
        self._left_bytes = LINGER_SIZE_BYTES
        self._silent_due_seconds = now_seconds + patience.linger_seconds
        self._due_seconds = now_seconds + patience.linger_total_seconds
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the caller has left; asyncio says so here, and uvloop by `connection_lost`
                transport.abort()

    def discard(self, size_bytes: int, now_seconds: float) -> bool:
        """So much came in and is thrown away; returns whether more may come."""
        self._left_bytes -= size_bytes
        self._silent_due_seconds = now_seconds + self._patience.linger_seconds
        return self._left_bytes >= 0

    def is_over(self, now_seconds: float, unsent_bytes: int) -> bool:
        """Return True if the caller has had its time. The time does not pass while the answer itself is on its way."""
        if unsent_bytes:
            self._silent_due_seconds = now_seconds + self._patience.linger_seconds
            self._due_seconds = max(self._due_seconds, self._silent_due_seconds)
        return now_seconds >= min(self._due_seconds, self._silent_due_seconds)

    def hurry(self, now_seconds: float) -> None:
        """The server stops."""
        self._due_seconds = min(self._due_seconds, now_seconds + self._patience.linger_seconds)
