"""What has come on connections and was not read: the system is asked for all of them at once, or for one.

The loop knows what came when it last looked; while it waits for a commit more may come. A connection that is not being
read is not watched: it would be told every time.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import suppress
from select import POLLIN, poll
from selectors import EVENT_READ, DefaultSelector
from typing import Final

_REST_SIZE_BYTES: Final = 1024 * 1024
_PART_SIZE_BYTES: Final = 64 * 1024


class Unread:
    """The sockets that are watched, each from `watch` to `forget`. It lasts as long as whoever made it."""

    def __init__(self) -> None:
        self._selector = DefaultSelector()
        self._one = poll()

    def watch(self, socket_number: int) -> None:
        """Raises: OSError where the system can watch no more."""
        self._selector.register(socket_number, EVENT_READ)

    def forget(self, socket_number: int) -> None:
        """Watched or not, if there ever was a socket; to be called before it is closed."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(socket_number)

    def is_on(self, socket_number: int) -> bool:
        """Whether something can be read on this one. A system call, cheaper than the other where many are watched."""
        self._one.register(socket_number, POLLIN)
        try:
            return bool(self._one.poll(0))
        finally:
            self._one.unregister(socket_number)

    def look(self) -> Container[int]:
        """On which of them something can be read, their end included. A system call."""
        ready = self._selector.select(0)
        return {key.fd for key, _ in ready} if ready else ()


def rest_of(socket_number: int) -> Iterator[bytes]:
    """What came before a reset on a connection that is lost by it, a mebibyte at most; for `connection_lost` alone.

    Whoever answers early and closes over what it has not read resets; a write finds that before the answer is read.
    """
    left_bytes = _REST_SIZE_BYTES
    with suppress(OSError):
        while left_bytes > 0 and (data := os.read(socket_number, _PART_SIZE_BYTES)):
            left_bytes -= len(data)
            yield data
