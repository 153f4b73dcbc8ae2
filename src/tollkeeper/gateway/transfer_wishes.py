"""What a direct transfer's request describes, and what its 402 asks for (specification 4.1; contract 8).

On Solana a transaction is what an authorization is on EVM networks, and the wallet that is paid is named by the body's
`recipient` or by a node. Where the operator asks for a fee the 402 asks for that in place of the transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.api import string_field
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.challenge import transfer_challenge
from tollkeeper.core.errors import ApiError, Code, invalid, missing, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import ALIASES, normalise
from tollkeeper.core.preferences import preferred_wait_seconds
from tollkeeper.core.tenders import recipient_check, tender_of
from tollkeeper.core.verification import Check, form_checks, require
from tollkeeper.core.wallets import parse_address_of
from tollkeeper.core.wire import SCHEME, X402_VERSION, Payment, decode_payment_header, parse_payload, parse_uint256
from tollkeeper.gateway import operations
from tollkeeper.gateway.creating_once import key_among
from tollkeeper.gateway.hub_client import unavailable
from tollkeeper.gateway.transfer_keys import IDEMPOTENCY_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from litestar.datastructures import Headers

    from tollkeeper.core.challenge import Challenge
    from tollkeeper.core.tenders import Asset, Tender
    from tollkeeper.core.wire import Requirements
    from tollkeeper.gateway.hub_client import Supported
    from tollkeeper.gateway.token_accounts import TokenAccounts
    from tollkeeper.gateway.transfer_fee import TransferFees

API_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class Wish:
    """The transfer that a request describes. `pay_to` is the wallet that is paid; Solana's tender names its account.

    `own_key` and `wait_seconds`: the caller's `Idempotency-Key` and `Prefer: wait`, where there are such. `fee_token`:
    the `X-Credit-Token` of a fee, "" for none.
    """

    asset: Asset
    tender: Tender
    pay_to: str
    confirm: bool
    payment: Payment
    own_key: str | None
    wait_seconds: int | None
    fee_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Reads requests. `fees`: what charges for a transfer, None where nothing does."""

    supported: Callable[[], Supported]
    token_accounts: TokenAccounts
    public_url: str
    fees: TransferFees | None

    async def read(self, body: dict[str, Any], headers: Headers) -> Wish:
        """The body's transfer, and how its caller wants it carried out.

        Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_NETWORK, INVALID_ADDRESS, INVALID_AMOUNT, PAYMENT_INVALID,
        INVALID_SIGNATURE; UNAVAILABLE while the facilitator's networks are unknown.
        """
        own_key = key_among(headers.getall(IDEMPOTENCY_KEY, []))
        wait_seconds = preferred_wait_seconds(headers.get("Prefer", ""))
        network = string_field(body, "network")
        asset = self._asset(normalise(network).name)
        if "x-payment" not in headers:  # else it may have been paid for before (`DirectTransfers.make`)
            self.require_payable(asset)
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
        tender = self._tender(payment)
        if tender.value == 0:
            named = family.value_member
            raise ApiError(Code.INVALID_AMOUNT, f"{named} must be above zero", details={"field": named})
        recipient = await self._recipient(tender, asset, body)
        fee_token = headers.get("X-Credit-Token", "")
        return Wish(asset, tender, recipient, confirm, payment, own_key, wait_seconds, fee_token)

    def _asset(self, network: str) -> Asset:
        assets = self.supported().assets
        if not assets:
            raise unavailable()
        if network not in assets:
            raise self._not_made_there()
        return assets[network]

    def require_payable(self, asset: Asset) -> None:
        """Raises: INVALID_NETWORK where there is a fee, and its payee cannot be paid on the transfer's network."""
        if not self._is_payable(asset):
            raise self._not_made_there()

    def _is_payable(self, asset: Asset) -> bool:
        return self.fees is None or self.fees.is_paid_on(asset.network)

    def _not_made_there(self) -> ApiError:
        payable = sorted(name for name, asset in self.supported().assets.items() if self._is_payable(asset))
        details = {"field": "network", "supported": payable}
        return ApiError(Code.INVALID_NETWORK, "transfers are not made on that network", details=details)

    def _tender(self, payment: Payment) -> Tender:
        assets = self.supported().assets
        require(form_checks(payment, assets))
        return tender_of(payment, assets[normalise(payment.network).name])

    async def _recipient(self, tender: Tender, asset: Asset, body: Mapping[str, Any]) -> str:
        """The wallet that is paid: the body names it, or a node says whose the account is that is.

        What the body says beside what was signed must be the same, as at the hub.
        """
        named, amount = body.get("recipient"), body.get("amount")
        if named is not None:
            recipient = parse_address_of(asset.network.family, named, field="recipient")
        elif not asset.has_accounts:
            recipient = tender.recipient
        else:
            try:
                owner = await self.token_accounts.owner(tender.recipient, asset)
            except RpcUnavailable:
                raise missing("recipient") from None
            row = FAMILIES[asset.network.family]
            is_there = Check("recipient", owner is not None, row.not_payable, "a token account", None)
            require([is_there])
            recipient = str(owner)
        require([recipient_check(tender, asset, recipient)])
        if amount is not None:
            require([asset.stated_check(tender.value, parse_uint256(amount, "amount"))])
        return recipient

    def challenge(self, wish: Wish) -> Challenge:
        """The 402 that asks for the body's own transfer, or for the fee."""
        if self.fees is not None:
            return transfer_challenge(
                wish.asset,
                self.fees.pay_to,
                self.fees.fee_micro,
                self.public_url + operations.TRANSFER.path,
                API_VERSION,
            )
        return transfer_challenge(
            wish.asset, wish.pay_to, wish.tender.value, self.public_url + operations.TRANSFER.path, API_VERSION
        )

    def own_terms(self, wish: Wish, tender: Tender) -> Requirements:
        """What this payment of the body's transfer answers, with the fee payer that it names."""
        asset = wish.asset.charged_to(tender.fee_payer)
        resource = self.public_url + operations.TRANSFER.path
        return transfer_challenge(asset, wish.pay_to, tender.value, resource, API_VERSION).requirements

    def read_payment(self, wish: Wish, header: str) -> tuple[Payment, Tender]:
        """The payment, good in form and for this transfer; on EVM its signature is the hub's to judge.

        Raises: the refusal, of type payment.
        """
        payment = decode_payment_header(header.encode("latin-1"))
        # Before it is read as a payment of ours: on a network that is not enabled it is none, and none of the body's.
        _require_same("network", wish.asset.network.name, ALIASES.get(payment.network, payment.network))
        paid = self._tender(payment)
        _require_same("from", wish.tender.key.payer, paid.key.payer)
        _require_same("to", wish.tender.recipient, paid.recipient)
        _require_same("value", str(wish.tender.value), str(paid.value))
        return payment, paid


def _require_same(name: str, expected: str, found: str) -> None:
    """Raises: PAYMENT_INVALID where the payment differs from the body's transfer in this."""
    if expected != found:
        raise payment_error(
            Code.PAYMENT_INVALID,
            f"the payment is not the transfer that the body describes: {name}",
            details={"check": name, "expected": expected, "found": found},
        )
