"""One answer to a call of `tollkeeper pay`, and the one question of its buyer: was anything charged?"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tollkeeper.client.payments import read_object
from tollkeeper.client.requests import reason_of
from tollkeeper.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.core.json_types import JsonObject

CREDITS_IN: Final = "x-credit-token"
_RECEIPTS: Final = ("x-payment-response", "payment-response")
_TOLD: Final = (("credits left", "x-credits-remaining"), ("credit token", CREDITS_IN))
_GIVEN_BACK: Final = "the credit was given back"
# A transaction that failed does not use an EVM authorization: whoever has it may try again until its end.
_MAY_STILL_BE_MADE: Final = "transaction_failed"


class Charge(StrEnum):
    """Cost of a call."""

    NOTHING = "nothing"
    PAYMENT = "payment"  # a payment was carried out
    CREDIT = "credit"  # a credit that was bought before was used
    NOT_YET = "notYet"  # the payment was not carried out, and still could be
    ELSEWHERE = "elsewhere"  # the payment was carried out, for another purchase
    UNKNOWN = "unknown"


class ShownProof(StrEnum):
    """Proofs that a call shows to be served."""

    NOTHING = "nothing"
    CREDITS = "credits"  # a credit token, or the login of a wallet that holds credits
    PAYMENT = "payment"


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """An answer. Header names are lower case. `token` is the credit token that an earlier answer told."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    token: str | None = None

    @property
    def is_pending(self) -> bool:
        """Is the outcome of the payment not known, so that the same one is to be sent again?

        An answer with a receipt is a target's, whatever it says: a credit was used, and would be each time.
        """
        return self.status == 503 and not self.receipt and self.reason.startswith(("SETTLEMENT_PENDING", "UNAVAILABLE"))

    @property
    def has_receipt(self) -> bool:
        """Does it carry a receipt, of whatever kind?"""
        return any(name in self.headers for name in _RECEIPTS)

    @property
    def code(self) -> str:
        """The code of a refusal; empty where there is none."""
        return self.reason.partition(":")[0]

    @property
    def reason(self) -> str:
        """Why it was refused; empty where it does not say."""
        return reason_of(read_object(self.body))

    @property
    def receipt(self) -> JsonObject:
        """The decoded `X-Payment-Response`, else version 2's of a success; empty where there is none."""
        told = self._decoded("payment-response")
        return self._decoded("x-payment-response") or (told if told.get("success") is True else {})

    @property
    def credits_left(self) -> int | None:
        """Credits that are left of the purchase; None where the answer does not tell."""
        told = self.headers.get("x-credits-remaining", "")
        return int(told) if told.isascii() and told.isdecimal() else None

    @property
    def credit_token(self) -> str | None:
        """The token of the credits that are left, by this answer or an earlier one."""
        return self.headers.get(CREDITS_IN, self.token)

    @property
    def is_bound_to_wallet(self) -> bool:
        """Does the 402 say that only a login of the payer spends what is bought?"""
        resource = read_object(self.body).get("resource")
        return isinstance(resource, dict) and resource.get("creditBinding") == "wallet"

    def charge(self, proof: ShownProof) -> Charge:
        """Tell what this call cost."""
        is_paying = proof is ShownProof.PAYMENT
        if self.receipt and proof is not ShownProof.NOTHING:
            if _GIVEN_BACK in self.reason and not is_paying:
                return Charge.NOTHING
            return Charge.PAYMENT if is_paying and not self._used_held_credit else Charge.CREDIT
        is_fault = self.status >= 500 or self.status == 408  # a proxy's answer, or a fault's
        if not is_paying:
            return Charge.UNKNOWN if is_fault and proof is ShownProof.CREDITS and not self.code else Charge.NOTHING
        if is_fault:
            return Charge.UNKNOWN
        if self.status < 300:  # other sellers may tell no receipt
            return Charge.PAYMENT
        return self._charge_of_refusal()

    def _charge_of_refusal(self) -> Charge:
        if self.code == "NONCE_ALREADY_USED":
            return Charge.ELSEWHERE
        return Charge.NOT_YET if self.status == 402 and _MAY_STILL_BE_MADE in self._why() else Charge.NOTHING

    @property
    def _used_held_credit(self) -> bool:
        return self._decoded("payment-response").get("amount") == "0"

    def _why(self) -> str:
        said = read_object(self.body).get("error")
        details = said.get("details") if isinstance(said, dict) else said
        return str(details.get("reason") if isinstance(details, dict) else details)

    def _decoded(self, name: str) -> JsonObject:
        try:
            return read_object(base64.b64decode(self.headers.get(name, ""), validate=True))
        except ValueError:
            return {}

    @property
    def told(self) -> list[tuple[str, str]]:
        """Facts for the buyer beside the body: what was paid, what is left, how to spend it."""
        receipt = self.receipt
        paid = [(name, str(receipt[name])) for name in ("transaction", "network", "payer") if receipt.get(name)]
        if paid and self._used_held_credit:
            paid.append(("paid now", "nothing: it used a credit that the wallet holds"))
        headers = {**({} if self.token is None else {CREDITS_IN: self.token}), **self.headers}
        kept = [(name, headers[key]) for name, key in _TOLD if key in headers]
        said = [*paid, *kept, *([("refused", self.reason)] if self.reason else [])]
        return [(name, printable(value)) for name, value in said]
