"""What every benchmark has in common: cores, rounds that alternate ours with the reference, medians, the result's line.

Rates drift with the machine and its other users, ratios within one run much less: so both sides take turns in short
rounds, and what counts is the ratio of the medians.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Result:
    """`ours` and `reference` in `unit`; `ratio` says how many times better ours is. `also`: further fields."""

    name: str
    ours: float
    reference: float
    ratio: float
    unit: str
    runs: int
    also: dict[str, float | str] = field(default_factory=dict)

    def line(self) -> str:
        """The result as one line of JSON."""
        numbers = {
            "name": self.name,
            "ours": _rounded(self.ours),
            "reference": _rounded(self.reference),
            "ratio": _rounded(self.ratio),
            "unit": self.unit,
            "runs": self.runs,
        }
        also = {name: _rounded(value) if isinstance(value, float) else value for name, value in self.also.items()}
        return json.dumps(numbers | also)


def alternate(
    name: str,
    unit: str,
    rounds: int,
    ours: Callable[[], float],
    reference: Callable[[], float],
    *,
    also: dict[str, float | str] | None = None,
) -> Result:
    """Rates of both sides, taken in turns after one unmeasured turn each."""
    ours()
    reference()
    our_rates: list[float] = []
    reference_rates: list[float] = []
    for number in range(1, rounds + 1):
        our_rates.append(ours())
        reference_rates.append(reference())
        say(f"{name} {number}/{rounds}: ours {our_rates[-1]:.1f}, reference {reference_rates[-1]:.1f} {unit}")
    ours_median, reference_median = statistics.median(our_rates), statistics.median(reference_rates)
    ratio = ours_median / reference_median
    return Result(name, ours_median, reference_median, ratio, unit, rounds, {} if also is None else also)


def say(text: str) -> None:
    """A line for the reader, on standard error: standard output holds results only."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def cores() -> tuple[int, int]:
    """The core under measurement and the one for load, chains and everything else: the same where there is only one."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """This process, and what it starts meanwhile, on one core until the block ends."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, user and system, all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123 - no path of ours
        fields = stat.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
