"""Fees per gas that a transaction may pay, first or as a replacement, under the cap (contract 5.2; security F6).

Amounts are whole wei. The node's suggestion and the choice of the signer are made elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_GWEI: Final = 10**9
# What is paid on a network of ours where nobody wants to be faster.
USUAL_TIP_WEI: Final = _GWEI // 1000


def bounded_tip(suggested_wei: int, paid_wei: Sequence[int] | None, base_fee_wei: int) -> int:
    """Bound the tip that a node suggests by what recent blocks paid, so that its word alone cannot cost much.

    `paid_wei`: one tip of each block. The most of them is enough, and the usual tip always is: empty blocks pay
    nothing. Where the node does not show them (None), a tip is no more than the base fee.
    """
    most = base_fee_wei if paid_wei is None else max(paid_wei, default=0)
    return min(suggested_wei, max(most, USUAL_TIP_WEI))


def raised(fee_wei: int) -> int:
    """The least that replaces a transaction which pays so much: nodes ask for a tenth more, some for an eighth."""
    return fee_wei + fee_wei // 8 + 1


def settlement_cap(cap_wei: int) -> int:
    """The most that a settlement may pay, so that a raise of it fits into a cap of `cap_wei`, which is at least 1."""
    return (cap_wei - 1) * 8 // 9
