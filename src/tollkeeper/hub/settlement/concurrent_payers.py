"""Payers with more than one payment under way: their balance is worth a question (contract 5.2; security A-24).

A simulation that passes shows that the payer holds enough for this payment, and right after a verification the node was
asked for the balance itself already. The number is needed only for the payer's other payments under way. If none is
known, the balance is not asked for. The claim's commit knows them all, and says so if that was wrong: then the balance
is asked for, and for a while with each simulation of this payer's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from tollkeeper.hub.refusals import RETRY_AFTER_SECONDS
from tollkeeper.storage.hub.payers import Suspended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.hub.settlement.orders import AccountT, Order, PayloadT
    from tollkeeper.storage.hub.payers import Overdrawn

# A balance that covers nothing: where anything else is under way the claim comes back for the true one.
UNREAD: Final = -1
_REMEMBERED_SECONDS: Final = 10.0
_REMEMBERED: Final = 1_000

_Payer: TypeAlias = "tuple[str, str, str]"


class ConcurrentPayers:
    """Payers of one process with several payments under way."""

    def __init__(self) -> None:
        self._carried: Counter[_Payer] = Counter()
        self._until: dict[_Payer, float] = {}

    @contextmanager
    def carrying(self, key: PaymentKey) -> Iterator[None]:
        """Count the payment while a request carries it."""
        payer = _payer_of(key)
        self._carried[payer] += 1
        try:
            yield
        finally:
            self._carried[payer] -= 1
            if not self._carried[payer]:
                del self._carried[payer]

    def note_others(self, key: PaymentKey) -> None:
        """Note that something else of its payer's is under way, whoever carries it."""
        self._until[_payer_of(key)] = asyncio.get_running_loop().time() + _REMEMBERED_SECONDS
        while len(self._until) > _REMEMBERED:
            del self._until[next(iter(self._until))]

    def has_others(self, key: PaymentKey) -> bool:
        """Say whether something else of this payment's payer is known to be under way, or was a moment ago."""
        payer = _payer_of(key)
        if asyncio.get_running_loop().time() >= self._until.get(payer, 0.0):
            self._until.pop(payer, None)
            return self._carried[payer] > 1
        return True


def _payer_of(key: PaymentKey) -> _Payer:
    return key.network, key.asset, key.payer


# A payer's balance of now, where what is under way seems to take all of it (contract 5.2; security A-24).

# So many of a payer's payments under way are looked up at once, where its money seems not to last for one more.
_LOOKED_UP_AT_ONCE: Final = 99


async def balance_beside(
    order: Order[AccountT, PayloadT],
    value: int,
    overdrawn: Overdrawn,
    holding: Callable[[Sequence[str]], Awaitable[tuple[int, Sequence[bool]]]],
) -> tuple[int, frozenset[str]]:
    """Return what the payer of `value` more holds now, and the nonces of what under way took its part of that.

    `holding` reads both of some nonces. Some may be mined that are not known to be, the oldest first: they are looked
    up until the money lasts, or none of so many was. Raises: RpcUnavailable; UNAVAILABLE where it seems not to last,
    and not all were looked up.
    """
    left, used = dict(overdrawn.under_way), frozenset[str]()
    waiting = list(left)
    while True:
        batch, waiting = waiting[:_LOOKED_UP_AT_ONCE], waiting[_LOOKED_UP_AT_ONCE:]
        # Read with each look: what was used by an earlier one has left it, too.
        balance, are_used = await holding(batch)
        found = frozenset(nonce for nonce, is_used in zip(batch, are_used, strict=True) if is_used)
        used |= found
        lasts = sum(left[nonce] for nonce in left if nonce not in used) + value <= balance
        if lasts or not waiting:
            return balance, used
        if not found:
            raise order.account.gas_budget.suspended(order.key.payer, Suspended(0, len(left), RETRY_AFTER_SECONDS))
