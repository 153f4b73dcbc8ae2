"""Purchases that hold credits in a database, without a gateway, a hub or a chain: for what measures spends alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.core.paygates import CreateDefaults, parse_create
from tollkeeper.core.purchases import Claim, Terms, header_hash
from tollkeeper.core.sealing import KeyRing
from tollkeeper.core.wire import PaymentKey
from tollkeeper.storage.paygates import PayGates
from tollkeeper.storage.purchases import Paid, Purchases
from tollkeeper.storage.sealing import Sealing

if TYPE_CHECKING:
    from tollkeeper.core.paygates import PayGate
    from tollkeeper.storage.database import Database

PURCHASES: Final = 256
HEADER: Final = header_hash(b"header")  # of each of them
_CREDITS: Final = 100_000_000
_PAYEE: Final = "0x" + "ab" * 20
_RING: Final = KeyRing("a", {"a": bytes(32)})


@dataclass(frozen=True, slots=True)
class Shelf:
    """One gate, and purchases of it by number."""

    gate: PayGate
    purchases: Purchases


def key_of(number: int) -> PaymentKey:
    """The payment of a purchase."""
    return PaymentKey("base-sepolia", "0x" + "11" * 20, f"0x{number:040x}", f"0x{number:064x}")


async def filled(database: Database) -> Shelf:
    """So many purchases, each with credits for longer than anybody measures."""
    sealing = Sealing(_RING, os.urandom)
    purchases = Purchases(database, sealing)
    body = {"price": "0.01", "targetUrl": "http://target/", "credits": _CREDITS}
    new = parse_create(body, CreateDefaults("base-sepolia", _PAYEE))
    gate = await PayGates(database, sealing, os.urandom).create(new, None, None, clock_ms())
    for number in range(PURCHASES):
        claim = await purchases.claim(
            key_of(number),
            Terms(gate.id, gate.version, gate.price_micro, gate.credits, gate.payment_address, gate.network, None),
            purchase_id=f"pur_{number:022}",
            paid=Paid(gate.price_micro, 2**40, HEADER),
            trust=None,
            request_of=lambda _id, _attempt, _is_trusted: b"x" * 900,
            now_ms=clock_ms(),
        )
        assert claim.outcome is Claim.WON
        assert claim.purchase is not None
        await purchases.grant(claim.purchase, "0x" + "1" * 64, confirmed=True, wish=None, now_ms=clock_ms())
    return Shelf(gate, purchases)
