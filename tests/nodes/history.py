"""A history of paid calls, judged: of each purchase there is a counter that goes down, and up where a credit came back.

Who was told what is left fixes the order of calls. A call whose answer was lost took a credit or did not, at any time
after it was begun; one that was answered otherwise may have taken a credit and given it back.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

LOST: Final = math.inf  # when a call ended of which nothing was heard


class Outcome(Enum):
    """What a caller was told."""

    SERVED = "served"
    REFUSED = "refused"  # whatever was taken came back
    EXHAUSTED = "exhausted"  # no credit was left
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `left`: what its caller was told is left."""

    purchase: int
    began: float
    ended: float
    outcome: Outcome
    left: int = -1


def faults(
    calls: Iterable[Call], granted: Mapping[int, int], left: Mapping[int, int], restored: Mapping[int, int]
) -> list[str]:
    """Return what no counter explains: what each purchase had, has at the end, and how many credits came back."""
    of_purchase: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        of_purchase[call.purchase].append(call)
    return [
        f"purchase {number}: {fault}"
        for number in granted
        for fault in _of_one(of_purchase[number], granted[number], left[number], restored.get(number, 0))
    ]


def _of_one(calls: list[Call], granted: int, left: int, restored: int) -> Iterable[str]:
    served = sorted((call for call in calls if call.outcome is Outcome.SERVED), key=lambda call: -call.left)
    told = {call.left for call in served}
    if len(served) - len(told) > restored:
        yield "two calls took the same credit"
    if served and not left <= served[-1].left <= served[0].left < granted:
        yield "a call took a credit that was not there"
    outcomes = Counter(call.outcome for call in calls)
    kept, unknown = granted - left - len(served), outcomes[Outcome.UNKNOWN]
    if not 0 <= kept <= min(unknown, unknown + outcomes[Outcome.REFUSED] - restored):
        yield f"{kept} credits are gone for {unknown} calls of unknown outcome, of which {restored} have theirs back"
    latest = -math.inf
    for call in served:
        if call.ended < latest and not restored:
            yield "a call that ended before another began took a later credit"
            break
        latest = max(latest, call.began)
