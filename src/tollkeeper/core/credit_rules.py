"""Rules of credits: which proof counts, whose next try it is, what is given back (contract 4.3, 4.5)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from tollkeeper.core.api.errors import Code
from tollkeeper.core.paygates.fields import CreditBinding, OnFailure
from tollkeeper.core.purchases import Spend

if TYPE_CHECKING:
    from tollkeeper.core.api.errors import ApiError


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
