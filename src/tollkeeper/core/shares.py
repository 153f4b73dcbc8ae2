"""Shares of a bounded resource, so that no tenant stops the others (security A-58).

The rule, for anything of which there is a bounded amount (places, bytes, gas of an hour, questions of a second):

- A tenant is whose work takes it: a gate's owner; a caller's address where there is no owner; a trusted gateway.
- A tenant takes more only if afterwards it has no more than half of what is left to the others.
- A tenant that has nothing may take one while one is left, so that a small resource serves somebody.
- What a tenant has is only what it holds now: the rule forgets who took much before.

What follows. Of a capacity C one tenant alone gets a third. Of n tenants that all want everything each gets
C / (n + 2), and twice that much is left to the next one. Each tenant that comes later gets a third of what those before
it left. A refused tenant waits, or is told to ask again: the rule never takes anything away.

Example, C = 12: Ann takes 4 and is refused the fifth (5 > half of 7). Bob comes: 8 are left, he takes 2 (2 <= half of
6) and is refused the third (3 > half of 5). 6 are left for whoever comes next.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


def may_take(has: int, amount: int, left: int) -> bool:
    """Apply the rule to a tenant that `has` so much, wants `amount` more, and finds `left` of the resource.

    For a resource that is counted elsewhere, as the gas of an hour is in the database; `Shares` counts by itself.
    """
    return amount <= left and has + amount <= max(1, (left - amount) // 2)


class Shares:
    """One resource of some capacity, counted by tenant. Belongs to one event loop."""

    __slots__ = ("_capacity", "_held", "_left")

    def __init__(self, capacity: int) -> None:
        self._capacity = self._left = capacity
        self._held: Counter[Hashable] = Counter()

    @property
    def left(self) -> int:
        """The part that nobody holds."""
        return self._left

    @property
    def held(self) -> int:
        """The part that tenants hold together."""
        return self._capacity - self._left

    def held_by(self, tenant: Hashable) -> int:
        """Return how much a tenant holds."""
        return self._held[tenant]

    def take(self, tenant: Hashable, amount: int = 1) -> bool:
        """Give a tenant so much more, if the rule allows it. Return False, and give nothing, if it does not."""
        held = self._held.get(tenant, 0)
        if not may_take(held, amount, self._left):
            return False
        self._held[tenant] = held + amount
        self._left -= amount
        return True

    def give_back(self, tenant: Hashable, amount: int = 1) -> None:
        """Take back what a tenant took and needs no more."""
        self._held[tenant] = held = self._held[tenant] - amount
        self._left += amount
        if not held:
            del self._held[tenant]

    def resize(self, capacity: int) -> None:
        """Have another capacity, as a disk has that others use, too. What was given is not taken away."""
        self._left += capacity - self._capacity
        self._capacity = capacity
