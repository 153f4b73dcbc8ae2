"""Unread bytes of a connection, read from the system itself.

The loop knows what came when it last looked; while it waits for a commit more may come.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from select import POLLIN, poll
from typing import Final

_REST_SIZE_BYTES: Final = 1024 * 1024
_PART_SIZE_BYTES: Final = 64 * 1024


class Unread:
    """Asks the system about one socket at a time."""

    def __init__(self) -> None:
        self._one = poll()

    def is_on(self, socket_number: int) -> bool:
        """Return whether something can be read on this socket, its end included. A system call."""
        self._one.register(socket_number, POLLIN)
        try:
            return bool(self._one.poll(0))
        finally:
            self._one.unregister(socket_number)


def rest_of(socket_number: int) -> Iterator[bytes]:
    """Yield what came before a reset on a connection that is lost by it, a mebibyte at most.

    For `connection_lost` alone. A peer that answers early and closes over what it has not read resets the connection. A
    write finds the reset before the answer is read.
    """
    left_bytes = _REST_SIZE_BYTES
    with suppress(OSError):
        while left_bytes > 0 and (data := os.read(socket_number, _PART_SIZE_BYTES)):
            left_bytes -= len(data)
            yield data
