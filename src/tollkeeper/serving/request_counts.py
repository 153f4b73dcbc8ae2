"""What a process has answered: requests by kind and status, and how long they took (contract 2, metrics).

Counted on the way of every answer, so nothing here does more than add one to two numbers. A status is one of 600 and a
latency one of 64 powers of two: the labels are bounded, and no gate has one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BUCKETS: Final = 31  # by the number of bits of the microseconds; the last one holds what took nine minutes and more
_BITS: Final = 64  # no duration has more
_STATUSES: Final = 1000  # three digits


class Kind:
    """Answers of one kind, since the process's start."""

    __slots__ = ("_latencies", "_requests", "at_once", "sum_us")

    def __init__(self) -> None:
        self._requests = [0] * _STATUSES
        # By status, what was answered without being told to `count`: some microseconds each, which count as none.
        self.at_once: Callable[[], Mapping[int, int]] = dict
        self.sum_us = 0
        self._latencies = [0] * (_BITS + 1)

    def count(self, status: int, duration_us: int) -> None:
        """One answer, which took so long; a `status` of 0 is a request whose caller left before it had one."""
        self._requests[status] += 1
        self._latencies[duration_us.bit_length()] += 1
        self.sum_us += duration_us

    def count_all(self, statuses: Sequence[int], durations_us: Sequence[int]) -> None:
        """As `count`, for each of these."""
        if len(statuses) == 1:
            self.count(statuses[0], durations_us[0])
            return
        self.sum_us += sum(durations_us)
        for status, count in Counter(statuses).items():
            self._requests[status] += count
        for bits, count in Counter(map(int.bit_length, durations_us)).items():
            self._latencies[bits] += count

    @property
    def requests(self) -> Mapping[int, int]:
        """How many answers had each status."""
        return Counter({status: count for status, count in enumerate(self._requests) if count}) + Counter(
            self.at_once()
        )

    @property
    def latencies(self) -> list[int]:
        """How many answers took microseconds of so many bits."""
        none, *some = self._latencies
        return [none + sum(self.at_once().values()), *some[: BUCKETS - 2], sum(some[BUCKETS - 2 :])]


class RequestCounts:
    """Of one process. Kinds: `gate` (calls of PayGates) and `other` (everything else)."""

    def __init__(self) -> None:
        self.gate = Kind()
        self.other = Kind()

    def kinds(self) -> list[tuple[str, Kind]]:
        """Each with its name."""
        return [("gate", self.gate), ("other", self.other)]
