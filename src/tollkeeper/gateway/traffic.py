"""What happened, off the hot path: counters per gate and the ends of calls, written in batches (architecture 2).

Nothing here decides about money; what a crash loses is a count, and calls that it leaves open are marked INTERRUPTED
at the next start. An overflow is counted and logged, never silent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.paygates import PayGates
    from tollkeeper.storage.purchases import Purchases

INTERVAL_SECONDS: Final = 0.5
_LOG = structlog.get_logger("tollkeeper.gateway.traffic")


class Traffic:
    """Counts in memory and writes every INTERVAL_SECONDS."""

    def __init__(self, paygates: PayGates, purchases: Purchases, clock_ms: Callable[[], int]) -> None:
        self._paygates = paygates
        self._purchases = purchases
        self._clock_ms = clock_ms
        self._counts: dict[int, list[int]] = {}
        self._dropped = 0

    def _of(self, gate_id: int) -> list[int]:
        return self._counts.setdefault(gate_id, [0, 0, 0])

    def challenged(self, gate_id: int) -> None:
        """A 402 was answered to a request without payment."""
        self._of(gate_id)[0] += 1

    def ended(self, gate_id: int, call_id: str, status: int, *, failed: bool) -> None:
        """A paid call ended with this status; `failed` where the target did and the status is the gateway's own."""
        counts = self._of(gate_id)
        counts[1] += 1
        counts[2] += failed
        if not self._purchases.end_soon(call_id, status):
            self._dropped += 1

    def unwritten(self, gate_id: int) -> tuple[int, int, int]:
        """Challenges, calls and failures that are counted but not yet written."""
        challenges, calls, failures = self._counts.get(gate_id, (0, 0, 0))
        return challenges, calls, failures

    async def flush(self) -> None:
        """Writes what was counted; keeps it for the next try when the database does not take it."""
        counts, self._counts = self._counts, {}
        try:
            if counts:
                await self._paygates.count({gate_id: (c[0], c[1], c[2]) for gate_id, c in counts.items()})
                counts = {}
            await self._purchases.end_calls({}, self._clock_ms())
        except ApiError as error:
            _LOG.warning("flush_failed", error=error.message)
            for gate_id, numbers in counts.items():
                kept = self._of(gate_id)
                for index, number in enumerate(numbers):
                    kept[index] += number
        if self._dropped:
            _LOG.warning("ended_calls_dropped", count=self._dropped)
            self._dropped = 0

    async def run(self) -> None:
        """Flushes until cancelled; a flush that has begun is finished all the same."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                await asyncio.shield(self.flush())
            except Exception:  # noqa: BLE001 - logged; what was counted is tried again
                _LOG.exception("flush_failed")
