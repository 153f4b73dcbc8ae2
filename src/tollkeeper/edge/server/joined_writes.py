"""Sends the head of an answer with the first part of its body, in one packet instead of two.

uvicorn writes both apart, and its transport sends each at once: two system calls here, and two wake-ups of the caller.
A head whose body is not there yet leaves at the end of the event loop's turn. Decides nothing about what is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# Up to here copying is cheaper than sending both apart.
JOINED_SIZE_BYTES: Final = 64 * 1024


class JoinedWrites:
    """The transport, as uvicorn's writer of one answer uses it."""

    __slots__ = ("_end", "_head", "_is_joining", "_loop", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        end: Callable[[], None],
        *,
        has_body: bool = True,
    ) -> None:
        """`end` ends the connection behind its last answer.

        `has_body` is False for the answer to HEAD: its head must not wait, or a later answer could overtake it.
        """
        self._transport = transport
        self._end = end
        self._loop = loop
        self._head: bytes | None = None
        self._is_joining = has_body

    def write(self, data: bytes) -> None:
        """Write `data`. The first bytes wait for the second ones; all are dropped once the transport is closed."""
        if self._transport.is_closing():  # where asyncio drops them by itself, uvloop raises
            return
        if not self._is_joining:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
            self._loop.call_soon(self._send_head)
        elif len(data) <= JOINED_SIZE_BYTES:
            self._is_joining = False
            self._transport.write(self._head + data)
        else:
            self._is_joining = False
            self._transport.writelines([self._head, data])  # of a large one no copy waits for each slow caller

    def close(self) -> None:
        """Send a head that still waits, and close."""
        self._send_head()
        self._end()

    def is_closing(self) -> bool:
        """Return True if the transport is closed or being closed."""
        return self._transport.is_closing()

    def _send_head(self) -> None:
        if self._is_joining and self._head is not None:
            self._is_joining = False
            if not self._transport.is_closing():
                self._transport.write(self._head)
