"""Reader of an EVM network's facts by one node, or by whichever node answers in turn (`chains.quorum`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.chains.evm.authorizations import AuthorizationReader
from tollkeeper.chains.evm.blocks import read_block
from tollkeeper.chains.evm.receipts import ReceiptReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.logs import LogRange
    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call
    from tollkeeper.chains.sightings import Expected, Sighting


class EvmReader:
    """Reader of the authorizations of one asset, and of receipts."""

    def __init__(self, ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]], asset: str, logs: LogRange) -> None:
        self._ask = ask
        self.authorizations = AuthorizationReader(ask, asset, logs)
        self._receipts = ReceiptReader(ask)

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """Return the sightings in the receipts. Raises: RpcUnavailable."""
        return await self._receipts.look(wanted)

    async def look_there(self, wanted: Sequence[Expected], numbers: Sequence[int]) -> list[Sighting]:
        """Return the sightings in the receipts and in the blocks of these numbers. Raises: RpcUnavailable."""
        return await self._receipts.look_there(wanted, numbers)

    async def newest_seconds(self) -> int:
        """Return the time of the latest block. Raises: RpcUnavailable."""
        (block,) = await self._ask([("eth_getBlockByNumber", ["latest", False])])
        return read_block(block).timestamp_seconds
