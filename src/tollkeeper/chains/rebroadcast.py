"""Sending again what a node took and nobody shows (contract 5.2; security F4, F9).

A node may take a transaction and lose it, or pass it on to nobody. A signed transaction can be carried out once at
most, so it may be sent as often as one likes, and to whom one likes. What is not shown two seconds after it was sent
goes to every node, whether there is one or several: an authorization lasts a minute, and a buyer waits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LOG = structlog.get_logger("tollkeeper.chains")
_PAUSES_SECONDS: Final = (2.0, 4.0, 8.0)
_LOOK_SECONDS: Final = 0.75
_AWAITED_MAX: Final = 10_000  # at a time; the others are sent again by who finishes what nobody carries


class Rebroadcast:
    """Rebroadcast on one network. `is_shown` asks the nodes for a transaction, `send` hands it to all of them."""

    def __init__(
        self,
        network: str,
        is_shown: Callable[[str], Awaitable[bool]],
        send: Callable[[bytes, str], Awaitable[object]],
    ) -> None:
        self._network = network
        self._is_shown = is_shown
        self._send = send
        self._awaited: dict[str, asyncio.Task[None]] = {}

    def begin(self, raw: bytes, name: str) -> None:
        """Look after a transaction that is sent now."""
        if name not in self._awaited and len(self._awaited) < _AWAITED_MAX:
            task = asyncio.get_running_loop().create_task(self._look_after(raw, name))
            self._awaited[name] = task
            task.add_done_callback(lambda _: self._awaited.pop(name, None))

    def seen(self, name: str) -> None:
        """Look after it no more: somebody saw it on the chain."""
        task = self._awaited.get(name)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Look after nothing any more."""
        tasks = tuple(self._awaited.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_after(self, raw: bytes, name: str) -> None:
        for pause in _PAUSES_SECONDS:
            await asyncio.sleep(pause)
            with suppress(RpcUnavailable, TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    if await self._is_shown(name):
                        return
            _LOG.warning("sent_again", network=self._network, transaction=name)
            await self._send(raw, name)
