"""History items as CSV (RFC 4180), and when a caller wants them so (contract 7).

One line per item under a line of names; a member of `x402Data` or `purchaseData` has a column of its own. No cell can
be taken for a formula by a spreadsheet: titles and resources are other people's texts. Which items there are is decided
elsewhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.json_types import JsonMapping

MEDIA_TYPE: Final = "text/csv"
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
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")
_SPECIAL: Final = re.compile(r'[",\r\n]')
_QUALITY: Final = re.compile(r";\s*q\s*=\s*([01])(?:\.([0-9]{0,3}))?\s*(?:;|$)", re.ASCII)
_QUALITY_MAX: Final = 1000


def prefers_csv(accept: str) -> bool:
    """Does an `Accept` header want CSV rather than JSON? JSON where it names both alike and JSON first."""
    wanted: dict[str, int] = {}
    for media_range in accept.lower().split(","):
        name = media_range.partition(";")[0].strip()
        quality = _QUALITY.search(media_range)
        thousandths = int(quality[1] + (quality[2] or "").ljust(3, "0")) if quality else _QUALITY_MAX
        wanted.setdefault(name, thousandths)
    as_csv, as_json = wanted.get(MEDIA_TYPE, 0), wanted.get("application/json", 0)
    names = list(wanted)
    return as_csv > as_json or (as_csv == as_json > 0 and names.index(MEDIA_TYPE) < names.index("application/json"))


def history_csv(items: Iterable[JsonMapping]) -> str:
    """The items of specification 2.5 as a table; what an item has not is an empty cell."""
    rows = [COLUMNS, *([_cell(item, column) for column in COLUMNS] for item in items)]
    return "".join(",".join(map(_quoted, row)) + "\r\n" for row in rows)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _cell(item: JsonMapping, column: str) -> str:
    outer, _, inner = column.partition(".")
    value = item.get(outer)
    if inner:
        value = value.get(inner) if isinstance(value, dict) else None
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "'" + text if text.startswith(_FORMULA) else text
