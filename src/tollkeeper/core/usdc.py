"""Decimal USDC to integer micro-units and back, exactly (specification 2.1 price, 2.3 value; contract 3.1).

The only place that knows how many micro-units a USDC has. Nothing is ever rounded: what cannot be exact is refused.
"""

from __future__ import annotations

import re
from typing import Final

from tollkeeper.core.api.errors import ApiError, Code

MICRO_PER_USDC: Final = 1_000_000
_DECIMALS: Final = 6
_PRICE: Final = re.compile(r"(0|[1-9][0-9]{0,11})(?:\.([0-9]{1,6}))?", re.ASCII)


def parse_usdc(text: object, *, field: str = "price") -> int:
    """Micro-units of a decimal USDC text such as `0.01`; above zero, at most 12 digits before and 6 after the point.

    Raises: INVALID_AMOUNT.
    """
    match = _PRICE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ApiError(
            Code.INVALID_AMOUNT,
            f"{field} must be a decimal USDC amount such as 0.01, with at most 6 decimals",
            details={"field": field},
        )
    micro = int(match[1]) * MICRO_PER_USDC + int((match[2] or "").ljust(_DECIMALS, "0"))
    if micro == 0:
        raise ApiError(Code.INVALID_AMOUNT, f"{field} must be above zero", details={"field": field})
    return micro


def format_usdc(micro: int) -> str:
    """The shortest decimal USDC text of `micro` micro-units: 10000 is `0.01`, 2000000 is `2`."""
    whole, rest = divmod(micro, MICRO_PER_USDC)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)
