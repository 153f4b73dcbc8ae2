"""Turns to search a Solana account's transactions, which anybody can have done for nothing (security A-15)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from tollkeeper.chains.replies import RpcUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SEARCHES_MAX: Final = 2  # behind an account's newest transactions, at a time
_TURN_SECONDS: Final = 2.0


class Searches:
    """Turns to search behind the newest transactions of an account: few at a time, and one by one for each account.

    So a payer that has its own account searched without end keeps the others waiting for one of its searches only.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_SEARCHES_MAX)
        self._accounts: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # while somebody holds it

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """Raises: RpcUnavailable where it does not come in time."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(_TURN_SECONDS):
                    await held.enter_async_context(self._accounts.setdefault(account, asyncio.Lock()))
                    await held.enter_async_context(self._places)
            except TimeoutError as error:
                raise RpcUnavailable("too many accounts are looked through") from error
            yield
