"""The body of one ASGI request, read while something else may be waited for.

ASGI tells that the client is gone only to whoever reads. This reads ahead, a little, so that a caller who waits for a
settlement or a target learns it, and hands the body on with backpressure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tollkeeper.core.errors import ApiError, Code

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from litestar.types import Receive

T = TypeVar("T")

AHEAD_SIZE_BYTES: Final = 64 * 1024


class Inbox:
    """Reads one request's body ahead, up to AHEAD_SIZE_BYTES. `limit_bytes` bounds the body as a whole."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._waiting_bytes = 0
        self._total_bytes = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self.gone = asyncio.Event()
        self.too_large = False
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while not self.gone.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
            elif message["type"] == "http.request" and not self._ended:
                chunk = message.get("body", b"")
                self._total_bytes += len(chunk)
                self.too_large = self._total_bytes > self._limit_bytes
                self._chunks.append(chunk)
                self._waiting_bytes += len(chunk)
                self._ended = not message.get("more_body", False) or self.too_large
            self._changed.set()
            while self._waiting_bytes >= AHEAD_SIZE_BYTES and not self._ended:
                self._room.clear()
                await self._room.wait()

    async def body(self) -> AsyncIterator[bytes]:
        """The body, chunk by chunk. Raises: ConnectionResetError when the client is gone; PAYLOAD_TOO_LARGE."""
        while True:
            while self._chunks:
                chunk = self._chunks.pop(0)
                self._waiting_bytes -= len(chunk)
                self._room.set()
                if chunk:
                    yield chunk
            if self.too_large:
                details = {"limitBytes": self._limit_bytes}
                raise ApiError(Code.PAYLOAD_TOO_LARGE, "the request body is too large", details=details)
            if self.gone.is_set() and not self._ended:
                msg = "the request body broke off"
                raise ConnectionResetError(msg)
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns; it is cancelled when the client goes away first. Raises: ConnectionResetError then."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            msg = "the client went away"
            raise ConnectionResetError(msg)
        finally:
            gone.cancel()
            task.cancel()

    def close(self) -> None:
        """Stops reading."""
        self._task.cancel()
