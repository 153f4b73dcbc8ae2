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
from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.core.api.errors import Code, failed_check, payment_error
from tollkeeper.core.limits import CHALLENGE_TIMEOUT_SECONDS, PAYMENT_ATTEMPTS_MAX, SALE_VALUE_MAX_MICRO
from tollkeeper.core.paygates.fields import CreditBinding, OnFailure
from tollkeeper.core.payment_offers import price_check, recipient_check
from tollkeeper.core.x402.verification import Check, Reason, refusal, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.api.errors import ApiError
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
    """Tell whether this transition is in the table."""
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
    """Return when to look again whether a reorganisation took a sale's payment away; None once that is over. Unix ms.

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


# Rules of credits: which proof counts, whose next try it is, what is given back (contract 4.3, 4.5).


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


def header_counts(binding: CreditBinding, *, shown: bytes, bought: bytes, is_payer: bool) -> bool:
    """Return True if a payment that is shown again counts for what it bought (contract 4.3, `creditBinding`).

    Under "payment" the same bytes do, compared by their hashes, and no bearer: it may be wanted and belong to somebody
    else. Elsewhere only the payer's bearer beside it does.
    """
    if binding is CreditBinding.PAYMENT:
        return hmac.compare_digest(shown, bought)
    return is_payer


def payer_may_spend(binding: CreditBinding, outcome: Spend, *, is_payer: bool) -> bool:
    """Return True if a bearer of the payer may spend where the payment beside it gave nothing.

    Under "token" the purchase of that payment; under "wallet" whatever purchase of the payer's is the oldest, also
    where that one is used up.
    """
    if binding is CreditBinding.PAYMENT or not is_payer:
        return False
    return outcome is Spend.WITHHELD or (binding is CreditBinding.WALLET and outcome is Spend.EXHAUSTED)


def next_try_is_buyers(binding: CreditBinding, *, is_payer: bool, shows_token: bool) -> bool:
    """Return True if a failed payment may be tried again by whoever shows it, though its transaction made it public.

    Under "token" anybody could have read it there, so its buyer shows who he is: by the claim's credit token, or as
    the payer.
    """
    return binding is not CreditBinding.TOKEN or is_payer or shows_token


def is_given_back(error: ApiError, on_failure: OnFailure) -> bool:
    """Return True if a call that was paid for and answered with this has its credit again (contract 4.5).

    A 503 charges nothing that is not honoured, as far as the database can: no connection was to be had, or it was our
    own disk, or our stop. A target that failed is paid, unless the owner has it otherwise. So is what is found wrong
    behind the spend with the rest of the request (413), and a fault of ours (500): committed is dispatched.
    """
    return error.code is Code.UNAVAILABLE or (error.status == 502 and on_failure is OnFailure.RESTORE)


# A payer's proof: a payment that is shown to spend a held credit, and is never settled (contract 10.3). It is a good
# payment here and now in everything but its balance. Official clients sign one for every call.
# - It takes an offer of the gate, to the letter, and its payer signed it (`terms_for`, `payment_offers`).
# - It ends soon: one that holds for long is worth more to whoever finds it than the credit.
# - No chain has used it, and nobody showed it before. Its identity is kept until no chain can use it any more.

# Clients let a payment hold for as long as its offer says, by clocks that may be a minute ahead.
LIFETIME_SECONDS: Final = CHALLENGE_TIMEOUT_SECONDS + 60
# A branch of an EVM chain that is dropped takes no later block's time with it than this.
_SAFE_SECONDS: Final = 3600


class AuthorizationStanding(NamedTuple):
    """How a payment stands on its chain.

    `moment` counts as the chain does what ends its payments: on EVM Unix seconds of its latest block, on Solana the
    height of its latest finalized block. `last`: the last such moment at which it may be used; 0 where the payment says
    it itself.
    """

    is_unused: bool
    moment: int
    last: int = 0

    def kept_until(self, offered: OfferedPayment) -> int:
        """Return the moment from which on nobody need remember that this payment was shown."""
        return self.last if offered.valid_before is None else offered.valid_before + _SAFE_SECONDS


def ends_soon(offered: OfferedPayment, now_seconds: int) -> bool:
    """Tell whether the payment ends about when its offer asks for. On Solana each does: blocks end it."""
    return offered.valid_before is None or offered.valid_before <= now_seconds + LIFETIME_SECONDS
