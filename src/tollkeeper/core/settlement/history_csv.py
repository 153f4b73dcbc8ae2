"""History items as a table (contract 7): a member of `x402Data` or `purchaseData` has a column of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.csv_table import csv_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.json_types import JsonMapping

_OF_PAYMENT: Final = (
    "x402Version scheme network asset payer payTo value validAfter validBefore nonce resource maxAmountRequired confirm"
)
_OF_PURCHASE: Final = "gateway paygateId slug title price credits purchaseId"
_OF_SOLANA_PAYMENT: Final = "messageHash payerSignature"
_OF_ITEM: Final = "id createdAt updatedAt signerAddress amount network chainId transactionHash status error type"
COLUMNS: Final = (
    *_OF_ITEM.split(),
    *(f"x402Data.{name}" for name in _OF_PAYMENT.split()),
    *(f"purchaseData.{name}" for name in _OF_PURCHASE.split()),
    *(f"x402Data.{name}" for name in _OF_SOLANA_PAYMENT.split()),  # last, where readers by number do not stumble
)


def history_csv(items: Iterable[JsonMapping]) -> str:
    """The items of specification 2.5 as a table; what an item has not is an empty cell."""
    return csv_table(COLUMNS, ([_value(item, column) for column in COLUMNS] for item in items))


def _value(item: JsonMapping, column: str) -> object:
    outer, _, inner = column.partition(".")
    value = item.get(outer)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, dict) else None
