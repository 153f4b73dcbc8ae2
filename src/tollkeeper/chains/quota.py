"""How many calls a second one network's nodes serve, and who may use them up (security A-58).

Nobody knows a node's quota before it refuses: until then nobody is bounded. Once all nodes have refused, the calls of
the last second are taken for what they serve, for some minutes. Strangers have half of it meanwhile, by `core.shares`,
so that no flood of theirs stops a sale. What a stranger is told is not decided here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Hashable

_LOG = structlog.get_logger("tollkeeper.chains")
_KNOWN_SECONDS: Final = 600.0
_WINDOW_SECONDS: Final = 1.0
# So few calls in a second tell nothing of a quota: the node is in trouble, or others have its quota.
_LEAST_CALLS: Final = 10
# Whether a payment would settle takes about so many calls.
_CALLS_OF_A_QUESTION: Final = 8


class Quota:
    """Quota of calls to one network's nodes."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, int]] = deque()  # when, how many calls, within the last second
        self._in_window = 0
        self._calls = 0  # that the nodes serve in a second; 0: nobody knows
        self._known_until = 0.0
        self._shares = Shares(0)
        self._ends = 0.0

    def asked(self, calls: int) -> None:
        """Count calls that leave now."""
        now = asyncio.get_running_loop().time()
        self._forget(now)
        self._asked.append((now, calls))
        self._in_window += calls

    def refused(self) -> None:
        """Learn from nodes that serve no more calls now, none of them."""
        now = asyncio.get_running_loop().time()
        self._forget(now)
        if self._in_window < _LEAST_CALLS:
            return
        if now >= self._known_until:
            _LOG.warning("node_quota_learned", calls_per_second=self._in_window)
            self._calls = self._in_window
        self._calls, self._known_until = min(self._calls, self._in_window), now + _KNOWN_SECONDS

    def may_ask(self, tenant: Hashable) -> bool:
        """Tell whether one more of a stranger's questions may be asked in this second."""
        now = asyncio.get_running_loop().time()
        if now >= self._known_until:
            return True
        if now >= self._ends:
            questions = max(1, self._calls // 2 // _CALLS_OF_A_QUESTION)
            self._shares, self._ends = Shares(questions), now + _WINDOW_SECONDS
        return self._shares.take(tenant)

    def _forget(self, now: float) -> None:
        while self._asked and self._asked[0][0] <= now - _WINDOW_SECONDS:
            self._in_window -= self._asked.popleft()[1]
