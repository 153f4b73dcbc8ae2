"""Runs the command behind it, and kills itself where an upload has come to its Nth await.

    python dying_upload.py BOUNDARY SIDE python -m tollkeeper.cli serve ...

SIDE `asked`: what the handler awaits was just begun (a write is under way in its thread, a statement in the database's,
a part on its way to the store); `answered`: it is done, and the handler has not seen it yet. Prints how many awaits an
upload had, where it lived to its end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from tollkeeper import cli
from tollkeeper.gateway.management import paygates


class Dying:
    """A coroutine, driven to its Nth suspension."""

    def __init__(self, inner: Coroutine[Any, Any, Any], boundary: int, side: str) -> None:
        self._inner = inner
        self._boundary = boundary
        self._side = side

    def __await__(self) -> Generator[Any, Any, Any]:
        """Counts what the handler waits for, wherever below it that is."""
        value, error, count = None, None, 0
        while True:
            try:
                asked = self._inner.send(value) if error is None else self._inner.throw(error)
            except StopIteration as end:
                print(f"awaits {count}", flush=True)  # noqa: T201 - for the test
                return end.value
            count += 1
            self._die(count, "asked")
            value, error = None, None
            try:
                value = yield asked
            except BaseException as raised:  # noqa: BLE001 - handed to the handler, as the loop would
                error = raised
            self._die(count, "answered")

    def _die(self, count: int, side: str) -> None:
        if count == self._boundary and side == self._side:
            os.kill(os.getpid(), signal.SIGKILL)


def dying(handler: Callable[..., Coroutine[Any, Any, Any]], boundary: int, side: str) -> Callable[..., Awaitable[Any]]:
    """The handler, which dies at its boundary where it was sent a form."""

    async def upload(management: Any, uploads: Any, request: Any) -> Any:
        coroutine = handler(management, uploads, request)
        if not request.headers.get("content-type", "").startswith("multipart/"):
            return await coroutine
        return await Dying(coroutine, boundary, side)

    assert asyncio.iscoroutinefunction(handler)
    return upload


def main() -> None:
    """See the module."""
    boundary, side, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for name in ("_create", "_update"):
        setattr(paygates, name, dying(getattr(paygates, name), boundary, side))
    sys.argv = ["tollkeeper", *arguments[arguments.index("tollkeeper.cli") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main()
