"""The judge of histories takes what a counter explains, and finds each fault that is put into it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.nodes.history import LOST, Call, Outcome, faults

GRANTED = 300


def sound() -> tuple[list[Call], int]:
    """Calls of four callers at once, of which some answers were lost; and what is left."""
    random_ = random.Random(7)
    left, calls = GRANTED, []
    for number in range(200):
        took = number + random_.uniform(0, 1)
        began, ended = took - random_.uniform(0, 4), took + random_.uniform(0, 4)
        fate = random_.random()
        if fate < 0.05:
            calls.append(Call(0, began, LOST, Outcome.UNKNOWN))
            left -= fate < 0.02
        else:
            left -= 1
            calls.append(Call(0, began, ended, Outcome.SERVED, left))
    return calls, left


def doubled(calls: list[Call], left: int) -> tuple[list[Call], int]:
    """One credit serves two calls."""
    first, second, *rest = [call for call in calls if call.outcome is Outcome.SERVED]
    return [first, replace(second, left=first.left), *rest], left


def lost_update(calls: list[Call], left: int) -> tuple[list[Call], int]:
    """The database forgot what was taken last."""
    return calls, left + 5


def taken_for_nothing(calls: list[Call], left: int) -> tuple[list[Call], int]:
    """Credits went that nobody asked for."""
    return calls, left - 20


def free(calls: list[Call], left: int) -> tuple[list[Call], int]:
    """A call was served before any credit was taken."""
    return [Call(0, -2, -1, Outcome.SERVED, GRANTED), *calls], left


def stale(calls: list[Call], left: int) -> tuple[list[Call], int]:
    """A late call was told what an early one should have been."""
    served = [call for call in calls if call.outcome is Outcome.SERVED]
    early, late = served[5], served[-5]
    swapped = {early: replace(early, left=late.left), late: replace(late, left=early.left)}
    return [swapped.get(call, call) for call in calls], left


def test_what_a_counter_explains_is_no_fault() -> None:
    calls, left = sound()
    assert faults(calls, {0: GRANTED}, {0: left}, {}) == []
    again = next(call for call in calls if call.outcome is Outcome.SERVED)
    for outcome in (Outcome.REFUSED, Outcome.UNKNOWN):
        given_back = Call(0, again.ended, again.ended + 1, outcome)
        assert faults([*calls, given_back, again], {0: GRANTED}, {0: left - 1}, {0: 1}) == []


@pytest.mark.parametrize("put_in", [doubled, lost_update, taken_for_nothing, free, stale])
def test_each_fault_is_found(put_in: Callable[[list[Call], int], tuple[list[Call], int]]) -> None:
    calls, left = put_in(*sound())
    assert len(faults(calls, {0: GRANTED}, {0: left}, {})) > 0
