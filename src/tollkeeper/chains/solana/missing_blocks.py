"""Record of the nodes of a Solana network that lack blocks, for the operator (security A-15)."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.chains.nodes import Node

_LOG = structlog.get_logger("tollkeeper.chains.solana")
_TOLD_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 5.0


class MissingBlocks:
    """Record of the nodes of one network that lack blocks.

    It tells the operator once a minute, and asks nodes seldom.
    """

    def __init__(self, network: str) -> None:
        self._network = network
        self._told: dict[Node, float] = {}  # when (event loop time) it may be told of again
        self._recent: dict[Node, tuple[float, bool]] = {}  # until when it is as it was
        self._asking = asyncio.Lock()

    def tell(self, node: Node, reason: str = "it lists fewer blocks than there are") -> None:
        """Tell the operator that the node lacks blocks by which something was to be proven."""
        now = asyncio.get_running_loop().time()
        if now >= self._told.get(node, -math.inf):
            self._told[node] = now + _TOLD_SECONDS
            _LOG.error("blocks_missing", network=self._network, node=node.position, reason=reason)

    async def has_recent(self, node: Node, ask: Callable[[], Awaitable[bool]]) -> bool:
        """Say whether the node has all blocks of some hour, as `ask` found out, asked seldom."""
        now = asyncio.get_running_loop().time
        async with self._asking:
            until, has_all = self._recent.get(node, (-math.inf, False))
            if now() >= until:
                has_all = await ask()
                self._recent[node] = now() + (_TOLD_SECONDS if has_all else _AGAIN_SECONDS), has_all
        return has_all
