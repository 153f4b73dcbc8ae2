"""Logs of ranges of blocks, from nodes that show only so many blocks at once (security A-15).

Nodes limit `eth_getLogs` to ranges of 10, 100, 1,000 or 10,000 blocks, and say so with any error. A range that is
refused is asked for in smaller ones: as large as the node says, else by halves. What was learned is kept. A node that
refuses one block shows nothing, which never means that there is nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RefusedByStatus
from tollkeeper.chains.rpc import RpcError, RpcUnavailable, is_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.chains.rpc import Answer

_LOG = structlog.get_logger("tollkeeper.chains")
# Most nodes show so many blocks at once: of Base, about five hours.
RANGE_BLOCKS: Final = 9_000
_NUMBER: Final = re.compile(r"\d[\d,_]*")


class LogRange:
    """How many blocks one network's nodes show at once; `limit` is what was learned of it, in their own words."""

    def __init__(self, network: str) -> None:
        self._network = network
        self.blocks = RANGE_BLOCKS
        self.limit = ""

    async def shown(
        self, ask: Callable[[int], Awaitable[Answer]], most: int = RANGE_BLOCKS
    ) -> tuple[int, list[dict[str, object]]]:
        """Ask for the logs of so many blocks as are shown at once, `most` at most: how many they are, and the logs.

        Raises: RpcUnavailable where the node shows none, also not of one block.
        """
        count, words = min(self.blocks, most), ""
        while True:
            try:
                answer = await ask(count)
            except RefusedByStatus as refused:
                answer = RpcError(0, str(refused))
            if not isinstance(answer, RpcError):
                break
            if count <= 1 or is_limit(answer):
                msg = f"the node does not answer eth_getLogs: {answer.message}"
                raise RpcUnavailable(msg)
            words = answer.message
            count = _smaller(count, words)
        if not isinstance(answer, list) or not all(isinstance(log, dict) for log in answer):
            msg = "the node's logs cannot be read"
            raise RpcUnavailable(msg)
        if words:
            self._learn(count, words)
        return count, answer

    def _learn(self, count: int, words: str) -> None:
        self.blocks = min(self.blocks, count)
        self.limit = f"eth_getLogs is answered for {self.blocks} blocks at once ({words})"
        _LOG.warning("node_limit_learned", network=self._network, limit=f"logs of {self.blocks} blocks", words=words)


def _smaller(refused: int, words: str) -> int:
    is_told = any(word in words.lower() for word in ("block", "range"))
    named = [int(re.sub("[,_]", "", text)) for text in _NUMBER.findall(words)] if is_told else []
    return max((one for one in named if 1 < one < refused), default=refused // 2)
