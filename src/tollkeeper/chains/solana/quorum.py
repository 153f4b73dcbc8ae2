"""Agreement of several nodes of a Solana network on transactions (contract 5; security A-15; decision 0022)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.evm.quorum import Vouched, Witnesses
from tollkeeper.chains.rpc import RpcError, RpcUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.receipts import Sighting
    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Answer, Call, Rpc

_CONFIRMED: Final = {"commitment": "confirmed"}


class NodeReads:
    """The reads of one node, in place of those of a network's `Rpc`."""

    def __init__(self, rpc: Rpc, node: Node) -> None:
        self._rpc, self.node = rpc, node

    async def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """Its answers. Raises: RpcUnavailable."""
        return await self._rpc.ask_of(self.node, calls)


def node_of(rpc: Rpc | NodeReads) -> Node:
    """The node that is read; the first one, where it may be any."""
    return rpc.node if isinstance(rpc, NodeReads) else rpc.nodes.all[0]


class SolanaWitnesses(Witnesses):
    """The nodes of one network."""

    async def told(self, calls: Sequence[Call]) -> list[list[Answer]]:
        """Return the answers of each node that answers.

        Raises: RpcUnavailable if another one that is in reach does not.

        If enough nodes answer, the others are not missed.
        """
        loop = asyncio.get_running_loop()
        asked = [(node, answers) for node, answers in await self._rpc.probe(calls) if not node.barred]
        told = [answers for _, answers in asked if not isinstance(answers, RpcUnavailable)]
        silent = [node for node, answers in asked if isinstance(answers, RpcUnavailable)]
        is_missed = self.is_fixed or any(not self._rpc.nodes.is_out_of_reach(node, loop.time()) for node in silent)
        if not told or (len(told) < self.needed and silent and is_missed):
            msg = "too few nodes answer"
            raise RpcUnavailable(msg)
        return told

    async def newest_seconds(self, node: Node) -> int:
        """Return the time of the slot that the node calls confirmed; a slot stands for a block there."""
        slot = await self._one(node, ("getSlot", [_CONFIRMED]))
        return await self._one(node, ("getBlockTime", [slot]))

    async def _one(self, node: Node, call: Call) -> int:
        (answer,) = await self._rpc.ask_of(node, [call])
        if isinstance(answer, RpcError) or type(answer) is not int:
            msg = "the node does not say how old its newest block is"
            raise RpcUnavailable(msg)
        return answer


@dataclass(frozen=True, slots=True)
class Sought:
    """A transaction by its signature. `is_final_needed`: a sighting is deep once finalized, not once confirmed."""

    signature: str
    is_final_needed: bool


class VouchedStatuses(Vouched[Sought]):
    """Statuses of transactions by their signatures; `seen_at` reads those of one node."""

    def __init__(
        self, witnesses: Witnesses, seen_at: Callable[[Node, Sequence[Sought]], Awaitable[list[Sighting]]]
    ) -> None:
        super().__init__(witnesses)
        self._seen_at = seen_at

    async def look_at(self, node: Node, wanted: Sequence[Sought]) -> list[Sighting]:
        """Return the sightings as this node shows them."""
        return await self._seen_at(node, wanted)

    async def look_there(self, node: Node, wanted: Sequence[Sought], _numbers: Sequence[int]) -> list[Sighting]:
        """The same: a status is of the branch that its node follows."""
        return await self._seen_at(node, wanted)

    def name_of(self, one: Sought) -> str:
        """Its signature."""
        return one.signature
