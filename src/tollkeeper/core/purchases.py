"""Purchases and credits: states, outcomes, the proof that a later call must show (specification 1.5, contract 4.3).

The append-only ledger (`credit_entries`: calls, and what was granted and given back) is the truth; the counter
`remaining` is a cache written in the same transaction. Storage applies a transition with `WHERE state = :from` and
reads how many rows it changed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import Code, failed_check, payment_error
from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX, SALE_VALUE_MAX_MICRO
from tollkeeper.core.payment_offers import price_check, recipient_check
from tollkeeper.core.x402.verification import Check, Reason, refusal, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import Asset, OfferedPayment
    from tollkeeper.core.x402 import version2


class PurchaseState(StrEnum):
    """States of a purchase."""

    CLAIMED = "CLAIMED"  # the payment is ours to settle; its outcome is not known yet
    LIVE = "LIVE"  # settled; credits were granted
    FAILED = "FAILED"  # proved not settled; the same payment may be tried again
    VOID = "VOID"  # its gate was deleted, or its settlement proved failed after it was sold for; that may be disproved
    PARKED = "PARKED"  # nobody can tell the outcome; the operator decides
    SHOWN = "SHOWN"  # the payment spent a held credit, and is never settled: it buys nothing, unless it is honoured


# Why a purchase is VOID whose payment failed after it was sold for.
SETTLEMENT_FAILED: Final = "settlement_failed"
GATE_DELETED: Final = "gate_deleted"  # the same, with its gate
# Why an attempt is FAILED that was none: our hub refused what this gateway signed, whatever the payment. The next one
# has its number.
NOT_ATTEMPTED: Final = "hub_refused_our_signature"

TRANSITIONS: Final[dict[PurchaseState, frozenset[PurchaseState]]] = {
    PurchaseState.CLAIMED: frozenset({PurchaseState.LIVE, PurchaseState.FAILED, PurchaseState.PARKED}),
    PurchaseState.LIVE: frozenset({PurchaseState.VOID}),
    PurchaseState.FAILED: frozenset({PurchaseState.CLAIMED, PurchaseState.LIVE}),  # tried or made again; honoured
    PurchaseState.VOID: frozenset({PurchaseState.LIVE}),
    PurchaseState.PARKED: frozenset({PurchaseState.LIVE}),  # honoured; else it stays so
    PurchaseState.SHOWN: frozenset({PurchaseState.LIVE}),  # honoured, where somebody settled it all the same
}


def may_move(old: PurchaseState, new: PurchaseState) -> bool:
    """Is this transition in the table?"""
    return new in TRANSITIONS[old]


class Spend(Enum):
    """Outcomes of asking for one held credit."""

    SPENT = auto()
    EXHAUSTED = auto()  # settled, and every credit is used, void or expired
    WITHHELD = auto()  # credits are left, but not for this proof
    FOREIGN = auto()  # claimed at another gate
    IN_FLIGHT = auto()  # claimed here; the outcome is not known yet
    PARKED = auto()  # claimed here, and nobody can tell the outcome; or bought here, and it breaks an invariant
    FAILED = auto()  # claimed here and proved not settled
    SHOWN = auto()  # it spent a held credit here, and counts for nothing more
    STALE = auto()  # our copy of the gate is old; of a grant: made for nobody, or somebody else decided
    UNKNOWN = auto()  # never seen


class Claim(Enum):
    """Outcomes of claiming a payment."""

    WON = auto()
    TAKEN = auto()  # somebody else's claim stands; asking for a credit tells more
    ATTEMPTS_EXHAUSTED = auto()
    STALE = auto()


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a payment at a gate, as they were at the claim. `price_micro` is the least that was asked.

    The credits last `credits_expire_after_seconds` from the grant; None for ever.
    """

    gate_id: int
    gate_version: int
    price_micro: int
    credits: int
    pay_to: str
    network: str
    credits_expire_after_seconds: int | None = None


def terms_for(
    gate: PayGate, asset: Asset, offered: OfferedPayment, now_ms: int, taken: version2.TakenOffer | None = None
) -> Terms:
    """The terms that this payment on the asset's network buys: the current ones or a former price's (contract 3.3).

    `taken`: the offer that a payment of version 2 says to take, whose amount it pays exactly. Raises: PAYMENT_INVALID
    for an offer that is none of the gate's, or another recipient; INSUFFICIENT_AMOUNT, or as the price's own check.
    """
    network = asset.network.name
    pay_to = gate.pay_to_on(network)
    assert pay_to is not None  # noqa: S101 - only networks that the gate is paid on are asked for
    current = gate.price_micro, gate.credits
    shown = [(one.price_micro, one.credits) for one in gate.former if now_ms < one.until_ms and one.network == network]
    if taken is None:
        require((recipient_check(offered, asset, pay_to),))
        price_micro, granted = next((terms for terms in shown if terms[0] == offered.value), current)
        require((price_check(offered, asset, price_micro),))
    else:
        terms = next((terms for terms in (*shown, current) if taken.is_at(terms[0])), None)
        if terms is None:
            raise taken.refusal()
        price_micro, granted = terms
        require((recipient_check(offered, asset, pay_to),))
        exact = asset.exact_check(offered.value, price_micro)
        if not exact.ok:
            raise refusal(exact, Code.INSUFFICIENT_AMOUNT if offered.value < price_micro else None)
    require((_countable_check(offered.value),))
    return Terms(
        gate.id,
        gate.version,
        price_micro,
        granted,
        pay_to,
        network,
        gate.credits_expire_after_seconds,
    )


def _countable_check(value: int) -> Check:
    """Can it be entered in the books? No USDC has so much; a token of one's own may."""
    most = str(SALE_VALUE_MAX_MICRO)
    return Check("value", value <= SALE_VALUE_MAX_MICRO, Reason.PAYLOAD, f"at most {most}", str(value))


# How long a sale's payment is followed after it is known to be paid: the hub watches 128 blocks, of two seconds each on
# Base, and a slot on Solana until it is final. Thrice as long, because blocks and clocks may be slow.
FOLLOWED_MS: Final = 900_000
FIRST_LOOK_MS: Final = 4_000
# For how long a parked claim is listed, and its wallet's bearer alone is asked for no other payment.
PARKED_SHOWN_MS: Final = 7 * 86_400_000


def next_look_ms(paid_ms: int, now_ms: int, *, is_used_up: bool) -> int | None:
    """When to look again whether a reorganisation took a sale's payment away; None once that is over. Unix ms.

    The older the block that it is in, the rarer: at thrice the age each time, and a last time at the end. Where no
    credit is left there is nothing to void, only the books to keep: at the end is enough.
    """
    end_ms = paid_ms + FOLLOWED_MS
    if now_ms >= end_ms:
        return None
    return end_ms if is_used_up else min(end_ms, now_ms + max(FIRST_LOOK_MS, 2 * (now_ms - paid_ms)))


def attempts_exhausted() -> Exception:
    """The refusal of a payment whose settlement failed too often."""
    return payment_error(
        Code.PAYMENT_INVALID,
        "this payment's settlement failed too often; sign a new one once this one can be carried out no longer",
        details=failed_check("attempts_exhausted", "attempts", f"at most {PAYMENT_ATTEMPTS_MAX}", "as many failed"),
    )


def header_hash(header: bytes) -> bytes:
    """Return the hash to keep of the header that bought: a later call must show the same bytes (contract 4.3)."""
    return hashlib.sha256(header).digest()


def credit_token(key: bytes, purchase_id: str) -> str:
    """The bearer of a purchase's credits: its id and an HMAC, so that it can be given again but not guessed."""
    tag = hmac.new(key, b"credit-token:" + purchase_id.encode(), hashlib.sha256).digest()
    return f"{purchase_id}.{base64.urlsafe_b64encode(tag).rstrip(b'=').decode()}"


def purchase_of_token(keys: Sequence[bytes], token: str) -> str | None:
    """The purchase id in a credit token that one of our keys made, else None. Constant time in the tag."""
    purchase_id = token.partition(".")[0]
    if not purchase_id.isascii() or not token.isascii():
        return None
    matches = [hmac.compare_digest(credit_token(key, purchase_id), token) for key in keys]
    return purchase_id if any(matches) else None
