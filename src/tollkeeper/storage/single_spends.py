"""One spend as a value that is sent whole to the process that writes: by payment, credit token or wallet (a `Job`).

For callers who need one answer and wait for nobody's batch. Either may be asked again where an answer was lost: the
call's id names the spend. What this module does not do: take credits (`spending`), find what was taken
(`spending_again`), gather spends (`ledger`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.purchases import Spend
from tollkeeper.storage.database import LostError
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.spending import HeldSpend, look_of_payer, spend_all, spend_of_payer
from tollkeeper.storage.spending_again import spend_again, spend_of_payer_again

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.storage.database import Database, Unit

_LOOKS_MAX: Final = 3
_AS_IT_STANDS: Final = frozenset({Spend.SPENT, Spend.PARKED, Spend.IN_FLIGHT})


class SpendOne(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """A credit of one purchase. `is_again`: it was sent before, to a process that went away without an answer."""

    spend: HeldSpend
    now_ms: int
    is_again: bool = False

    def unit(self) -> Unit[SpendResult]:
        """See `spend_all` and `spend_again`."""
        (result,) = yield from (spend_again if self.is_again else spend_all)([self.spend], self.now_ms)
        return result


class SpendOfPayer(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """A credit of the oldest purchase that a wallet has at the gate; `is_again` as above."""

    payer: str
    wish: SpendRequest
    now_ms: int
    is_again: bool = False

    def unit(self) -> Unit[SpendResult]:
        """See `spend_of_payer` and `spend_of_payer_again`."""
        take = spend_of_payer_again if self.is_again else spend_of_payer
        return (yield from take(self.payer, self.wish, self.now_ms))


async def spend_oldest(
    database: Database,
    charge: Callable[[SpendOne | SpendOfPayer], Awaitable[SpendResult]],
    payer: str,
    wish: SpendRequest,
    now_ms: int,
) -> SpendResult:
    """As `spend_of_payer`, and looks for the purchase where no spend waits for it: a wallet may have a great many.

    Where what was found is spent meanwhile again and again, or the look is lost, look and spend are one unit.
    """
    for _ in range(_LOOKS_MAX):
        try:
            rows = await database.read(look_of_payer(payer, wish, now_ms))
        except LostError:
            break
        if not rows:
            return SpendResult(Spend.UNKNOWN)
        result = await charge(SpendOne(HeldSpend(None, rows[0]["id"], wish), now_ms))
        if result.outcome in _AS_IT_STANDS:
            return result
    return await charge(SpendOfPayer(payer, wish, now_ms))
