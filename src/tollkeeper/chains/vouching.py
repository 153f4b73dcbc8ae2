"""What several nodes of a network show alike, where one node's word is not enough (contract 5; security A-15).

A node that answers consistently with itself can show a transfer that nobody made. Where the operator wants it, what one
node shows counts once as many of the others as are wanted show the same, each asked for itself: the same verdict in the
same block, and deep enough there too. What they do not show alike is not seen yet; nothing fails by that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tollkeeper.chains.receipts import NOTHING_SEEN, Expected, ReceiptReader, Sighting, Verdict
from tollkeeper.chains.rpc import RpcUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Rpc

_LOG = structlog.get_logger("tollkeeper.chains")


class VouchedReader:
    """Reads what `needed` different nodes show alike."""

    def __init__(self, rpc: Rpc, needed: int) -> None:
        self._rpc = rpc
        self._needed = needed
        self._any = ReceiptReader(rpc.ask)
        self._readers = {node.position: ReceiptReader(partial(rpc.ask_of, node)) for node in rpc.nodes.all}

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """What is shown now, in the order asked. Raises: RpcUnavailable."""
        sightings = await self._any.look(wanted)
        seen = [place for place, one in enumerate(sightings) if one.verdict is not Verdict.ABSENT]
        alike: Counter[int] = Counter()
        deep: Counter[int] = Counter()
        for node in self._rpc.nodes.in_order(asyncio.get_running_loop().time()):
            asked = [place for place in seen if alike[place] < self._needed]
            if not asked:
                break
            for place, other in zip(asked, await self._ask(node, [wanted[place] for place in asked]), strict=True):
                one = sightings[place]
                if (other.verdict, other.block_hash) == (one.verdict, one.block_hash):
                    alike[place] += 1
                    deep[place] += other.deep
                elif other.verdict is not Verdict.ABSENT:
                    transaction = wanted[place].transaction_hash
                    _LOG.warning("nodes_show_different_things", node=node.position, transaction=transaction)
        return [
            replace(one, deep=one.deep and deep[place] >= self._needed)
            if alike[place] >= self._needed
            else NOTHING_SEEN
            for place, one in enumerate(sightings)
        ]

    async def _ask(self, node: Node, wanted: Sequence[Expected]) -> list[Sighting]:
        """What this node shows; nothing where it does not answer."""
        try:
            return await self._readers[node.position].look(wanted)
        except RpcUnavailable:
            return [NOTHING_SEEN] * len(wanted)
