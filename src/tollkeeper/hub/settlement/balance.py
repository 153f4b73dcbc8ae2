"""A payer's balance of now, where what is under way seems to take all of it (contract 5.2; security A-24)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.hub.refusals import RETRY_AFTER_SECONDS
from tollkeeper.storage.hub.payers import Suspended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.hub.settlement.account import AccountT, PayloadT
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.storage.hub.payers import Overdrawn

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
