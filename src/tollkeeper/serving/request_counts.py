"""What a process has answered: requests by kind and status, and how long they took (contract 2, metrics).

Counted on the way of every answer, so nothing here does more than add one to two numbers. A status is one of 600 and a
latency one of 31 powers of two: the labels are bounded, and no gate has one.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

BUCKETS: Final = 31  # by the number of bits of the microseconds; the last one holds what took nine minutes and more


class RequestCounts:
    """Of one process, since its start. Kinds: `gate` (calls of PayGates) and `other` (everything else)."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latencies: dict[str, list[int]] = {"gate": [0] * BUCKETS, "other": [0] * BUCKETS}
        self.sum_us: Counter[str] = Counter()

    def count(self, kind: str, status: int, duration_ns: int) -> None:
        """One answer; a `status` of 0 is a request whose caller left before it had one."""
        duration_us = duration_ns // 1000
        self.requests[kind, status] += 1
        self.latencies[kind][min(duration_us.bit_length(), BUCKETS - 1)] += 1
        self.sum_us[kind] += duration_us
