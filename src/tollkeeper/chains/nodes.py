"""Which of a network's nodes is asked: the first in the configured order that is well (contract 5; security A-15, F4).

A node that gave no answer rests for a while, longer each time; one that others overruled, or that is behind them, comes
after those that are not; one of another chain or token is never asked. What is sent to a node, and what it must be, is
not decided here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = structlog.get_logger("tollkeeper.chains.rpc")
_REST_FIRST_SECONDS: Final = 2.0
_REST_MAX_SECONDS: Final = 60.0
_DOUBTED_SECONDS: Final = 60.0
LAG_BLOCKS_MAX: Final = 5
# Without an answer for so long, a node is out of reach; until then it may have been one broken connection.
OUT_OF_REACH_SECONDS: Final = 10.0
BATCH_SIZE_MAX: Final = 100


@dataclass(slots=True, eq=False)
class Node:
    """One node. `barred` says why it must not be asked; `height` is the latest block that it was seen to have.

    `silent_since`: when the first of its failures in a row was; one that has never answered was always silent.
    """

    position: int  # in the configuration, from 1: its URL may hold a key and is never shown
    url: str = field(repr=False)
    batch_size: int = BATCH_SIZE_MAX
    barred: str = ""
    height: int | None = None
    failures: int = 0
    rests_until: float = 0.0
    silent_since: float | None = -math.inf
    is_behind: bool = False
    doubted_until: float = 0.0

    def judged(self, network: str, problem: str) -> None:
        """It said who it is; `problem`: why it must not be asked on this network, empty where it may."""
        if problem and problem != self.barred:
            _LOG.error("node_refused", network=network, node=self.position, reason=problem)
        self.barred = problem

    def answered(self) -> None:
        """It gave an answer that could be read."""
        if self.failures:
            _LOG.info("node_answers_again", node=self.position)
        self.failures, self.rests_until, self.silent_since = 0, 0.0, None

    def failed(self, now: float, reason: str) -> None:
        """It gave none. `now`: event loop time."""
        if not self.failures:
            _LOG.warning("node_failed", node=self.position, reason=reason)
        self.rests_until = now + min(_REST_FIRST_SECONDS * 2**self.failures, _REST_MAX_SECONDS)
        self.failures = min(self.failures + 1, 16)
        if self.silent_since is None:
            self.silent_since = now

    def overruled(self, now: float) -> None:
        """Enough others showed alike what it did not. `now`: event loop time."""
        if now >= self.doubted_until:
            _LOG.error("node_overruled", node=self.position)
        self.doubted_until = now + _DOUBTED_SECONDS


class Nodes:
    """All nodes of a network."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.all = tuple(Node(position, url) for position, url in enumerate(urls, start=1))
        self.out_of_reach_seconds = OUT_OF_REACH_SECONDS

    def is_out_of_reach(self, node: Node, now: float) -> bool:
        """Does it not answer, and for so long that nothing is to be expected of it?"""
        return node.silent_since is not None and now - node.silent_since >= self.out_of_reach_seconds

    def missing(self, needed: int) -> int:
        """How many fewer answer than are needed."""
        return max(0, needed - sum(not node.barred and not node.failures for node in self.all))

    def well(self, now: float) -> list[Node]:
        """Those that do not rest, in the order in which they are asked."""
        return [node for node in self.in_order(now) if now >= node.rests_until]

    def in_order(self, now: float) -> list[Node]:
        """Those that may be asked, the best first."""
        usable = [node for node in self.all if not node.barred]
        return sorted(usable, key=lambda node: (now < node.rests_until, now < node.doubted_until, node.is_behind))

    def compare_heights(self) -> None:
        """Finds out which nodes are behind, by the heights that were seen last."""
        heights = [node.height for node in self.all if node.height is not None and not node.barred]
        highest = max(heights, default=0)
        for node in self.all:
            was_behind, node.is_behind = (
                node.is_behind,
                node.height is not None and node.height < highest - LAG_BLOCKS_MAX,
            )
            if node.is_behind and not was_behind:
                _LOG.warning("node_behind", node=node.position, height=node.height, highest=highest)
