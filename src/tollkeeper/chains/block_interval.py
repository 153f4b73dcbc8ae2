"""When a chain's next block is worth looking for, by when those before it were found. Times are seconds of one clock.

Chains add their blocks in a steady beat, and who looks every half second learns of one a quarter of a second late in
the mean. What is known of a block is that it came behind a look that did not show it and before one that did. From two
such blocks the beat follows, from the latest the moment of the next: it is looked for in the middle of where it may
come, at the end, and then ever more rarely. So what is known gets narrower with each block, until it is as wide as the
chain is unsteady, and a beat that moves is followed.
"""

from __future__ import annotations

import math
from typing import Final

# Faster ones are not foretold: to look as often as their blocks come is more than nodes like to be asked (Solana), and
# a chain that adds a block for each transaction has no beat.
_SHORTEST_SECONDS: Final = 0.8
_NARROWEST_SECONDS: Final = 0.02
# Looks lie closer together than this. Where they did not, no node answered, and the block may have come at any time.
_WIDEST_SECONDS: Final = 1.0
# How much of what is known of the beat a measurement over one block replaces: one over many counts for nearly all.
_REMEMBERED_BLOCKS: Final = 7
# From another beat than this much of it nothing is learned: it is begun anew.
_SAME_BEAT: Final = 0.25
_LEAST_AHEAD_SECONDS: Final = 0.001


class BlockBeat:
    """Times of the blocks of one chain."""

    __slots__ = ("_after", "_by", "_number", "_period")

    def __init__(self) -> None:
        self._number = -1
        self._after = self._by = 0.0
        self._period = 0.0  # seconds from block to block; 0: not known

    def found(self, number: int, after: float, by: float) -> None:
        """Block `number` came behind `after`, and was there at `by`."""
        if by - after > _WIDEST_SECONDS:
            return
        if number == self._number:
            self._after, self._by = max(self._after, min(after, self._by)), min(self._by, max(by, self._after))
            return
        blocks = number - self._number
        if self._number >= 0 and blocks > 0:
            self._learn((by - self._by) / blocks, blocks)
            # Where the first look found it, it may have come much earlier: the next is looked for a little earlier.
            after = max(after, by - 2 * self._width)
        self._number, self._after, self._by = number, after, by

    def next_look(self, now: float) -> float | None:
        """Return the first moment behind `now` at which it is worth looking; None while the beat is not known."""
        period, width = self._period, self._width
        if period < _SHORTEST_SECONDS:
            return None
        blocks = max(1, math.ceil((now - self._by) / period - 0.25))
        while True:
            expected = self._by + blocks * period
            offset = -width / 2
            while offset <= period / 4:
                if expected + offset > now + _LEAST_AHEAD_SECONDS:
                    return expected + offset
                offset = 2 * offset + width
            blocks += 1

    @property
    def _width(self) -> float:
        """How well the moment of a block is known: seconds."""
        return max(_NARROWEST_SECONDS, min(self._by - self._after, self._period))

    def _learn(self, measured: float, blocks: int) -> None:
        """Take a beat that was measured over so many blocks."""
        if abs(measured - self._period) > _SAME_BEAT * self._period:
            self._period = measured
        else:
            self._period += (measured - self._period) * blocks / (blocks + _REMEMBERED_BLOCKS)
