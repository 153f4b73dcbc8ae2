"""Requests of the gateway's API and pages begin a few in a turn of the loop (security A-58).

Each costs some half a millisecond of the loop. A burst of 160 from one caller, begun in one turn, would hold up every
paid call for a tenth of a second; begun a few in a turn, the calls in between are served as always. The hub's are not
held back: what is asked of a node in one turn is asked together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tollkeeper.serving.http.asgi import Application, Message, Receive, Send

STARTS_IN_A_TURN: Final = 4


class PacedStarts:
    """In front of `app`: a request beyond the turn's starts waits for a later turn, in order. For one event loop."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] == "http":
            await self._start()
        await self._app(scope, receive, send)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._begun:
            loop.call_soon(self._next_turn, loop)
        if self._begun < STARTS_IN_A_TURN:
            self._begun += 1
            return
        start = loop.create_future()
        self._waiting.append(start)
        await start

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < STARTS_IN_A_TURN:
            start = self._waiting.popleft()
            if not start.done():  # else its request was cut off
                start.set_result(None)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._next_turn, loop)
