"""The transfer that a request's body describes, its 402, and the payment shown for it (specification 4.1; contract 8).

On Solana a transaction is what an authorization is on EVM networks. It pays a token account, so the body's `recipient`
or a node names the wallet that is paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import string_field
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code, invalid, missing, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.http.prefer_header import preferred_wait_seconds
from tollkeeper.core.networks import ALIASES, normalise
from tollkeeper.core.paygates.challenge import transfer_challenge
from tollkeeper.core.payment_offers import offered_payment, recipient_check
from tollkeeper.core.wallets import parse_address_of
from tollkeeper.core.x402.verification import Check, code_of_reason, form_checks, require
from tollkeeper.core.x402.version1 import SCHEME, X402_VERSION, Payment, parse_payload, parse_uint256
from tollkeeper.core.x402.version2 import (
    PAYMENT_HEADERS,
    TakenOffer,
    decode_payment_header,
    offer_of,
    spoken_version,
    two_payments,
)
from tollkeeper.gateway.facilitator.client import unavailable
from tollkeeper.gateway.management import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from litestar.datastructures import Headers

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.paygates.challenge import Challenge
    from tollkeeper.core.payment_offers import Asset, OfferedPayment
    from tollkeeper.core.x402.version1 import Requirements
    from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
    from tollkeeper.gateway.facilitator.client import Supported

API_VERSION: Final = "v1"
_OWN_KEY: Final = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """The body's transfer. `pay_to` is the wallet that is paid, `offered.recipient` on Solana its token account.

    `wait_seconds`: the caller's `Prefer: wait`, if any.
    """

    asset: Asset
    offered: OfferedPayment
    pay_to: str
    confirm: bool
    payment: Payment
    wait_seconds: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequests:
    """Reader of requests, for the networks that the facilitator settles on."""

    supported: Callable[[], Supported]
    token_accounts: TokenAccounts
    public_url: str

    async def read(self, body: JsonObject, headers: Headers) -> TransferRequest:
        """Read the body's transfer, and how its caller wants it carried out.

        Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_NETWORK, INVALID_ADDRESS, INVALID_AMOUNT, PAYMENT_INVALID,
        INVALID_SIGNATURE; UNAVAILABLE while the facilitator's networks are unknown.
        """
        if _OWN_KEY in headers:  # under one key two payments would be made: the caller expects one
            raise invalid(_OWN_KEY, f"{_OWN_KEY} is not taken here: the payment is its own key, send the same again")
        network = string_field(body, "network")
        asset = self._asset(normalise(network).name)
        confirm = body.get("confirm", True)
        if not isinstance(confirm, bool):
            raise invalid("confirm", "confirm must be true or false")
        family = FAMILIES[asset.network.family]
        others = [row.payload_members[-1] for row in FAMILIES.values() if row is not family]
        if all(body.get(name) is None for name in others):  # else the payload is of another family, and told to be
            for name in family.payload_members:
                if body.get(name) is None:
                    raise missing(name)
        payment = Payment(X402_VERSION, SCHEME, network, parse_payload(body, ""))
        offered = self._offered(payment)
        if offered.value == 0:
            named = family.value_member
            raise ApiError(Code.INVALID_AMOUNT, f"{named} must be above zero", details={"field": named})
        recipient = await self._recipient(offered, asset, body)
        wait_seconds = preferred_wait_seconds(headers.get("Prefer", ""))
        return TransferRequest(asset, offered, recipient, confirm, payment, wait_seconds)

    def _asset(self, network: str) -> Asset:
        assets = self.supported().assets
        if not assets:
            raise unavailable()
        if network not in assets:
            details = {"field": "network", "supported": sorted(assets)}
            raise ApiError(Code.INVALID_NETWORK, "transfers are not made on that network", details=details)
        return assets[network]

    def _offered(self, payment: Payment) -> OfferedPayment:
        assets = self.supported().assets
        require(form_checks(payment, assets, version=spoken_version(payment)))
        return offered_payment(payment, assets[normalise(payment.network).name])

    async def _recipient(self, offered: OfferedPayment, asset: Asset, body: JsonMapping) -> str:
        """Return the wallet that is paid: the body names it, or a node says who owns the token account.

        Whatever the body says beside what was signed must be the same, as at the hub.
        """
        named, amount = body.get("recipient"), body.get("amount")
        if named is not None:
            recipient = parse_address_of(asset.network.family, named, field="recipient")
        elif not asset.has_accounts:
            recipient = offered.recipient
        else:
            try:
                owner = await self.token_accounts.owner(offered.recipient, asset)
            except RpcUnavailable:
                raise missing("recipient") from None
            row = FAMILIES[asset.network.family]
            is_there = Check("recipient", owner is not None, row.not_payable, "a token account", None)
            require([is_there])
            recipient = str(owner)
        require([recipient_check(offered, asset, recipient)])
        if amount is not None:
            require([asset.stated_check(offered.value, parse_uint256(amount, "amount"))])
        return recipient

    def challenge(self, transfer: TransferRequest) -> Challenge:
        """Make the 402 that asks for this transfer."""
        return self._asking_for(transfer.asset, transfer)

    def terms(self, transfer: TransferRequest, paid: OfferedPayment) -> Requirements:
        """Make the requirements that a payment of this transfer answers, with the fee payer that it names."""
        return self._asking_for(transfer.asset.charged_to(paid.fee_payer), transfer).requirements

    def _asking_for(self, asset: Asset, transfer: TransferRequest) -> Challenge:
        resource = self.public_url + operations.TRANSFER.path
        return transfer_challenge(asset, transfer.pay_to, transfer.offered.value, resource, API_VERSION)

    def payment(
        self, transfer: TransferRequest, shown: Mapping[bytes, Sequence[str]]
    ) -> tuple[Payment, OfferedPayment]:
        """Read the payment of this transfer: good in form; its EVM signature is the facilitator's to judge.

        `shown`: the payment headers that are there, at least one. Raises: the refusal, of type payment;
        INVALID_PARAMETER for two different payments.
        """
        first, *others = [self._shown(transfer, PAYMENT_HEADERS[name], values) for name, values in shown.items()]
        if any(paid.key != first[1].key or paid.signature != first[1].signature for _, paid in others):
            raise two_payments()
        return first

    def _shown(self, transfer: TransferRequest, name: str, values: Sequence[str]) -> tuple[Payment, OfferedPayment]:
        if len(values) != 1:
            raise payment_error(Code.PAYMENT_INVALID, f"{name} is there more than once")
        payment = decode_payment_header(values[0].encode("latin-1"), name)
        # Compared before the payment is read as one of ours: it may name a network that is not enabled.
        _require_same("network", transfer.asset.network.name, ALIASES.get(payment.network, payment.network))
        paid = self._offered(payment)
        if payment.accepted is not None:
            taken = TakenOffer(offer_of(self.terms(transfer, paid)), payment.accepted)
            if not taken.is_at(transfer.offered.value):
                raise taken.refusal()
        _require_same("from", transfer.offered.key.payer, paid.key.payer)
        _require_same("to", transfer.offered.recipient, paid.recipient)
        _require_same("value", str(transfer.offered.value), str(paid.value))
        return payment, paid


def _require_same(name: str, expected: str, found: str) -> None:
    """Refuse a payment that differs from the body's transfer in this. Raises: PAYMENT_INVALID."""
    if expected != found:
        raise payment_error(
            Code.PAYMENT_INVALID,
            f"the payment is not the transfer that the body describes: {name}",
            details={"check": name, "expected": expected, "found": found},
        )


def refused_transfer(reason: str, transaction: str, advice: str = "") -> ApiError:
    """Make the 400 for a transfer that was refused for this reason, by this transaction ("" for none)."""
    details = {"reason": reason, **({"transaction": transaction} if transaction else {})}
    if transaction:
        advice = "its transaction may have made this very transfer: look at that before you sign another"
    message = f"the transfer was refused: {reason}" + (f"; {advice}" if advice else "")
    return payment_error(code_of_reason(reason), message, details=details)
