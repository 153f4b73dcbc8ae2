"""Payments in the books, for the comparison with the chain, and how far the books were compared (security I6 to I8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import Code
from tollkeeper.core.keys.sealing import place, unseal
from tollkeeper.core.purchases import SETTLEMENT_FAILED, PurchaseState
from tollkeeper.core.settlement.reconciliation import BookedPayment, Entry
from tollkeeper.core.settlement.states import State, Status, public_status
from tollkeeper.core.x402.verification import code_of_reason
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.keys.sealing import KeyRing
    from tollkeeper.storage.engine.database import Row, Snapshot, Steps

_Q: Final = load_queries("reconciliation.sql")
_OF_SETTLEMENT: Final = {
    Status.SUCCESS: BookedPayment.PAID,
    Status.PENDING: BookedPayment.OPEN,
    Status.FAILED: BookedPayment.FAILED,
}
_OF_SALE: Final = {
    PurchaseState.LIVE: BookedPayment.PAID,
    PurchaseState.VOID: BookedPayment.PAID,
    PurchaseState.CLAIMED: BookedPayment.OPEN,
    PurchaseState.PARKED: BookedPayment.OPEN,
    PurchaseState.FAILED: BookedPayment.FAILED,
    PurchaseState.SHOWN: BookedPayment.FAILED,  # never ours to settle
}


class Books:
    """The settlements of one asset in one consistent state. Every method may raise StorageError."""

    def __init__(self, snapshot: Snapshot, network: str, asset: str) -> None:
        self._snapshot = snapshot
        self._where = {"network": network, "asset": asset}

    def recipients(self) -> list[str]:
        """Everybody who was paid, or was to be."""
        return [row["pay_to"] for row in self._snapshot.read(_Q.recipients(**self._where, of_sales=0))]

    def sold_to(self) -> frozenset[str]:
        """Those of them that a gate sells for."""
        return frozenset(row["pay_to"] for row in self._snapshot.read(_Q.recipients(**self._where, of_sales=1)))

    def signers(self) -> frozenset[str]:
        """Every account that ever signed settlements on the network."""
        return frozenset(row["signer"] for row in self._snapshot.read(_Q.signers(network=self._where["network"])))

    def first_block(self) -> int | None:
        """The first block that the books name."""
        number: int | None = self._snapshot.read(_Q.first_block(**self._where))[0]["number"]
        return number

    def entries(self, keys: Iterable[PaymentKey], blocks: range) -> list[Entry]:
        """The settlements of these payments, and those that are confirmed in these blocks."""
        rows = self._snapshot.read(_Q.settlements_in_blocks(first=blocks.start, end=blocks.stop, **self._where))
        known = {entry.key: entry for entry in map(_settlement, rows)}
        for key in keys:
            if key not in known:
                rows = self._snapshot.read(_Q.settlement_of(payer=key.payer, nonce=key.nonce, **self._where))
                known |= {entry.key: entry for entry in map(_settlement, rows)}
        return list(known.values())

    def sales(self, ring: KeyRing) -> list[Entry]:
        """Every purchase, for a gateway whose hub keeps books of its own. Raises: SealError."""
        return [_sale(row, ring) for row in self._snapshot.read(_Q.sales(**self._where)) if row["honoured_ms"] is None]

    def honoured(self, ring: KeyRing) -> list[Entry]:
        """Every purchase that an operator granted by hand, and that is not void for its payment. Raises: SealError."""
        found = self._snapshot.read(_Q.honoured_sales(**self._where))
        return [entry for row in found if (entry := _sale(row, ring)).standing is BookedPayment.PAID]

    def is_honoured(self, key: PaymentKey) -> bool:
        """Tell whether an operator granted the payment's credits by hand."""
        return bool(self._snapshot.read(_Q.honoured(payer=key.payer, nonce=key.nonce, **self._where)))

    def next_block(self) -> int | None:
        """The first block that was not compared yet; None before the first time."""
        rows = self._snapshot.read(_Q.cursor(**self._where))
        return rows[0]["next_block"] if rows else None


def payments_in(snapshot: Snapshot, *, of_sales: bool) -> dict[tuple[str, str], int]:
    """How many payments the books have of each network and asset: settlements, or sales. Raises: StorageError."""
    rows = snapshot.read(_Q.count_sales() if of_sales else _Q.count_settlements())
    return {(row["network"], row["asset"]): row["payments"] for row in rows}


@unit_of_work
def move_cursor(network: str, asset: str, next_block: int) -> Steps[None]:
    """Remember how far the chain was compared."""
    yield _Q.move_cursor(network=network, asset=asset, next_block=next_block)


def _key(row: Row) -> PaymentKey:
    return PaymentKey(row["network"], row["asset"], row["payer"], row["nonce"])


def _settlement(row: Row) -> Entry:
    standing, transaction_hash = _OF_SETTLEMENT[public_status(State(row["state"]))], row["transaction_hash"]
    if standing is BookedPayment.FAILED and row["foreign_hash"]:
        standing, transaction_hash = BookedPayment.REFUSED, row["foreign_hash"]
    return Entry(
        row["id"], _key(row), row["pay_to"], int(row["value"]), standing, transaction_hash, row["block_number"]
    )


def _sale(row: Row, ring: KeyRing) -> Entry:
    standing = _OF_SALE[PurchaseState(row["state"])]
    if row["failure"] == SETTLEMENT_FAILED:  # VOID, and not because its gate was deleted
        standing = BookedPayment.FAILED
    elif standing is BookedPayment.FAILED and code_of_reason(row["failure"]) is Code.NONCE_ALREADY_USED:
        standing = BookedPayment.REFUSED
    if standing is BookedPayment.PAID and not row["confirmed"]:
        standing = BookedPayment.OPEN
    return Entry(
        row["id"],
        _key(row),
        unseal(ring, row["pay_to"], place("purchases", row["id"], "pay_to")).decode(),
        int(row["value_micro"]),
        standing,
        row["transaction_hash"] or "",
        None,
    )
