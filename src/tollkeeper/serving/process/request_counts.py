"""Counts of a process's answers: requests by kind and status, and how long they took (contract 2, metrics).

Counted on the way of every answer, so nothing here does more than add one to two numbers. A status is one of 600 and a
latency one of 64 powers of two: the labels are bounded, and no gate has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BUCKETS: Final = 31  # by the number of bits of the microseconds; the last one holds what took nine minutes and more
_BITS: Final = 64  # no duration has more
_STATUSES: Final = 1000  # three digits


class AnswerKind:
    """Answers of one kind, since the process's start."""

    __slots__ = ("_latencies", "_requests", "sum_us")

    def __init__(self) -> None:
        self._requests = [0] * _STATUSES
        self.sum_us = 0
        self._latencies = [0] * (_BITS + 1)

    def count(self, status: int, duration_us: int) -> None:
        """One answer, which took so long; a `status` of 0 is a request whose caller left before it had one."""
        self._requests[status] += 1
        self._latencies[duration_us.bit_length()] += 1
        self.sum_us += duration_us

    @property
    def requests(self) -> Mapping[int, int]:
        """How many answers had each status."""
        return {status: count for status, count in enumerate(self._requests) if count}

    @property
    def latencies(self) -> list[int]:
        """How many answers took microseconds of so many bits."""
        return [*self._latencies[: BUCKETS - 1], sum(self._latencies[BUCKETS - 1 :])]


class RequestCounts:
    """Counts of one process. Kinds: `gate` (calls of PayGates) and `other` (everything else)."""

    def __init__(self) -> None:
        self.gate = AnswerKind()
        self.other = AnswerKind()

    def kinds(self) -> list[tuple[str, AnswerKind]]:
        """Each with its name."""
        return [("gate", self.gate), ("other", self.other)]
