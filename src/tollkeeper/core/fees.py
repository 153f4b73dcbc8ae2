"""What a transaction may pay per gas: under the cap, and for taking another one's place (contract 5.2; security F6).

Whole wei. What the market asks, and who signs, is not decided here.
"""

from __future__ import annotations


def raised(fee_wei: int) -> int:
    """The least that replaces a transaction which pays so much: nodes ask for a tenth more, some for an eighth."""
    return fee_wei + fee_wei // 8 + 1


def settlement_cap(cap_wei: int) -> int:
    """The most that a settlement may pay, so that a raise of it fits into a cap of `cap_wei`, which is at least 1."""
    return (cap_wei - 1) * 8 // 9
