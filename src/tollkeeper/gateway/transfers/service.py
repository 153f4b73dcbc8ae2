"""The direct transfer from its request to its answer (contract 8).

Without `X-Payment` the answer is a 402 whose requirements are the body's own network, recipient and value. With an
`X-Payment` of the same payer, recipient, value and network that authorization is transferred, once; the body's own,
where it is another one, stays unused, because an official client answers a 402 with a fresh nonce. So nobody pays
twice.

The same payment sent again is told its outcome and starts nothing. Our hub keeps the outcome under an idempotency key,
which is made of the whole request with the payment's signature: nobody but the payer knows it before the transaction
goes out, and every process makes the same one. Of a refusal only the payment's own stays: the hub's /verify is asked
first, and what that refuses is not kept, so that a payment may be good later.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from litestar import Response

from tollkeeper.api import API_VERSION, HttpRequest, clock_ms, iso, json_body, ok, string_field
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code, invalid, missing, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.http.prefer_header import preferred_wait_seconds
from tollkeeper.core.networks import ALIASES, normalise
from tollkeeper.core.paygates.challenge import Profile, profile_of, transfer_challenge
from tollkeeper.core.payment_offers import offered_payment, recipient_check
from tollkeeper.core.purchases import SETTLEMENT_FAILED
from tollkeeper.core.wallets import parse_address_of, shown_address
from tollkeeper.core.x402.verification import Check, Reason, code_of_reason, form_checks, require
from tollkeeper.core.x402.version1 import SCHEME, X402_VERSION, Payment, encode_header, parse_payload, parse_uint256
from tollkeeper.core.x402.version2 import (
    PAYMENT_HEADERS,
    PAYMENT_REQUIRED_HEADER,
    RECEIPT_HEADER,
    SETTLEMENT_PENDING,
    TakenOffer,
    decode_payment_header,
    in_version_1,
    offer_of,
    receipt_of,
    spoken_version,
    two_payments,
)
from tollkeeper.describing import route
from tollkeeper.gateway.evidence.port import EvidenceOutcome, ExpectedTransfer
from tollkeeper.gateway.facilitator.client import HubUnreachableError, SettleMeaning, log_refused_signature, unavailable
from tollkeeper.gateway.management import operations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar.datastructures import Headers
    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.paygates.challenge import Challenge
    from tollkeeper.core.payment_offers import Asset, OfferedPayment
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
    from tollkeeper.gateway.purchase.monitor import PurchaseParts

_OWN_KEY: Final = "Idempotency-Key"
_DONE: Final = 200
_NO_STORE: Final = {"Cache-Control": "no-store"}
_ADVICE: Final = "if you sent this payment before, look at your wallet's transactions first: it may have been made then"
_LOG = structlog.get_logger("tollkeeper.gateway")


# The transfer that a request's body describes, its 402, and the payment shown for it (specification 4.1; contract 8).
# On Solana a transaction is what an authorization is on EVM networks. It pays a token account, so the body's
# `recipient` or a node names the wallet that is paid.


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


@dataclass(frozen=True, slots=True)
class DirectTransfers:
    """The endpoint, for the networks that the facilitator settles on.

    `parts` are those of purchases, `profile` is the shape of a 402 for who asks for none.
    """

    parts: PurchaseParts
    token_accounts: TokenAccounts
    profile: Profile

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
        assets = self.parts.supported().assets
        if not assets:
            raise unavailable()
        if network not in assets:
            details = {"field": "network", "supported": sorted(assets)}
            raise ApiError(Code.INVALID_NETWORK, "transfers are not made on that network", details=details)
        return assets[network]

    def _offered(self, payment: Payment) -> OfferedPayment:
        assets = self.parts.supported().assets
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

    def challenge(self, transfer: TransferRequest, paid: OfferedPayment | None = None) -> Challenge:
        """Make the 402 that asks for this transfer, or that `paid` answers, with the fee payer that it names."""
        asset = transfer.asset if paid is None else transfer.asset.charged_to(paid.fee_payer)
        resource = self.parts.gateway_url + operations.TRANSFER.path
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
            taken = TakenOffer(offer_of(self.challenge(transfer, paid).requirements), payment.accepted)
            if not taken.is_at(transfer.offered.value):
                raise taken.refusal()
        _require_same("from", transfer.offered.key.payer, paid.key.payer)
        _require_same("to", transfer.offered.recipient, paid.recipient)
        _require_same("value", str(transfer.offered.value), str(paid.value))
        return payment, paid

    async def make(self, transfer: TransferRequest, payment: Payment, paid: OfferedPayment) -> JsonObject:
        """Carry out what this payment pays, and return the hub's transfer body.

        Raises: the refusal; SETTLEMENT_PENDING, UNAVAILABLE.
        """
        make = self._make_at_hub if self.parts.supported().is_ours else self._make_elsewhere
        return await make(transfer, payment, paid)

    async def _make_at_hub(self, transfer: TransferRequest, payment: Payment, paid: OfferedPayment) -> JsonObject:
        await self._require_good(paid, self.parts.hub.asked_of(payment, self.challenge(transfer, paid).requirements))
        body = _asked_of_hub(payment, transfer, paid.value)
        key = f"transfer-{hashlib.sha256(body).hexdigest()}"
        request = self.parts.hub.transfer_request(body, key=key, wait_seconds=transfer.wait_seconds)
        answer = await self.parts.hub.transfer(request)
        if answer is None:
            raise self._pending(paid.key, "")
        status, said = answer
        if status == _DONE and type(said.get("success")) is bool and isinstance(said.get("transaction"), str):
            return said
        raise _refusal_of(status, said) or self._pending(paid.key, "")

    async def _require_good(self, paid: OfferedPayment, asked: bytes) -> None:
        """Refuse a payment that the hub calls invalid and has no record of.

        One on record may have been made for this very request, which its key shows. Raises: the refusal;
        SETTLEMENT_PENDING while the hub does not say, because it may have been asked before.
        """
        try:
            verdict = await self.parts.hub.verify(asked)
            if verdict.is_valid or await self.parts.hub.payment_status(paid.key) is not None:
                return
        except (ApiError, HubUnreachableError):
            raise self._pending(paid.key, "") from None
        raise refused_transfer(verdict.reason or "invalid_payment", verdict.transaction or "")

    def _pending(self, key: PaymentKey, transaction: str) -> ApiError:
        url = self.parts.status_url + key.status_path
        return ApiError(
            Code.SETTLEMENT_PENDING,
            "the outcome of this transfer is not known yet: send the same payment again, do not sign a new one",
            details={"transaction": transaction, "statusUrl": url, "network": key.network},
        )

    # A transfer at a facilitator that has none of its own is a settlement of the transfer's requirements. Such a
    # facilitator knows no keys: asked again, it refuses what it made before. So where the gateway has a node, the chain
    # is asked first what became of the transfer (contract 4.3, 4.4, 8). A refusal proves nothing of an earlier request,
    # and says so. On Solana the chain shows a transaction only to who was told its name: there the same payment sent
    # again is refused as used.
    async def _make_elsewhere(self, transfer: TransferRequest, payment: Payment, paid: OfferedPayment) -> JsonObject:
        """Return the body that our hub would answer, as the chain shows it where the gateway has a node.

        Raises: the refusal; SETTLEMENT_PENDING.
        """
        hub, evidence = self.parts.hub, self.parts.evidence
        network, supported = paid.key.network, self.parts.supported()
        senders, now_ms = supported.senders_on(network), self.parts.clock_ms()
        expected = ExpectedTransfer(paid.key, transfer.pay_to, paid.value, paid.valid_before, now_ms, senders)
        if evidence.covers(network):
            try:
                finding = await evidence.on(network).before(expected, payment)
            except RpcUnavailable as error:
                _LOG.info("chain_not_seen", reason=str(error))
                raise self._pending(paid.key, "") from error
            # Whoever names a transfer that he did not sign is not told that it is a success.
            if finding.outcome is EvidenceOutcome.PAID and paid.is_signed_by_key:
                return _told(payment, paid, finding.transaction)
            if finding.is_used and finding.may_change:
                raise self._pending(paid.key, finding.transaction)
            if not finding.is_unused:
                raise refused_transfer(finding.reason or Reason.NONCE_USED, finding.transaction, _ADVICE)
        asked = hub.asked_of(payment, self.challenge(transfer, paid).requirements)
        asking = hub.settle(hub.settle_request(asked, key="", confirm=transfer.confirm, purchase_data={}))
        answer = await evidence.settle(expected, asking, trusted=not transfer.confirm, confirms=supported.confirms)
        if answer.outcome is SettleMeaning.SUCCESS:
            return _told(payment, paid, answer.transaction)
        is_used = code_of_reason(answer.reason) is Code.NONCE_ALREADY_USED  # by whom, it need not say
        if answer.outcome is SettleMeaning.FAILED or is_used:
            raise refused_transfer(answer.reason, answer.transaction, _ADVICE)
        raise self._pending(paid.key, answer.transaction)


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


def transfer_routes(transfers: DirectTransfers) -> list[HTTPRouteHandler]:
    """Make the route handler."""

    @route(operations.TRANSFER)
    async def transfer(request: HttpRequest) -> Response[bytes]:
        """Answer 402 without a payment, and with the hub's transfer body for one (contract 8)."""
        described = await transfers.read(await json_body(request), request.headers)
        shown = {name: found for name in PAYMENT_HEADERS if (found := request.headers.getall(name.decode("ascii"), []))}
        if not shown:
            profile, asked = profile_of(request.headers.get("accept", ""), transfers.profile), clock_ms()
            challenge = transfers.challenge(described)
            headers = {**_NO_STORE, PAYMENT_REQUIRED_HEADER: challenge.header}
            body = challenge.body(profile, iso(asked))
            return Response(body, status_code=402, headers=headers, media_type="application/json")
        payment, paid = transfers.payment(described, shown)
        try:
            done = await transfers.make(described, payment, paid)
        except ApiError as error:
            if error.code is Code.SETTLEMENT_PENDING:
                transaction = (error.details or {}).get("transaction", "")
                error.headers |= _receipt(payment, paid, transaction, SETTLEMENT_PENDING)
            raise
        told = {name: value for name, value in done.items() if name not in {"apiVersion", "timestamp"}}
        receipt = {name: told.get(name) for name in ("success", "transaction", "network", "payer", "amount")}
        reason = "" if done.get("success") is True else str(done.get("errorReason") or SETTLEMENT_FAILED)
        own = {"X-Payment-Response": encode_header(receipt)} | _receipt(payment, paid, done["transaction"], reason)
        return ok(told, headers={**_NO_STORE, **own})

    return [transfer]


def _asked_of_hub(payment: Payment, transfer: TransferRequest, amount: int) -> bytes:
    """Encode what our hub is asked for: everything that says which transfer it is."""
    return msgspec.json.encode(
        {
            "x402Version": X402_VERSION,
            "network": in_version_1(payment).network,
            "payload": payment.payload.body(),
            "asset": transfer.asset.address,
            "amount": str(amount),
            "recipient": transfer.pay_to,
            "confirm": transfer.confirm,
        }
    )


def _receipt(payment: Payment, paid: OfferedPayment, transaction: str, reason: str) -> dict[str, str]:
    """Write the receipt of a payment of version 2: `reason` why it is none of a success, or "" (contract 10.1)."""
    if payment.accepted is None:
        return {}
    receipt = receipt_of(paid.key.network, shown_address(paid.key.payer), transaction, error_reason=reason)
    return {RECEIPT_HEADER: encode_header(receipt)}


def _refusal_of(status: int, body: JsonObject) -> ApiError | None:
    """Turn the hub's refusal into ours; None where its answer says nothing that a caller could rely on."""
    error = body.get("error")
    if not isinstance(error, dict) or error.get("code") not in set(Code):
        return None
    code, message = Code[error["code"]], str(error.get("message", ""))
    details = error.get("details") if isinstance(error.get("details"), dict) else None
    if status == 400:
        make = payment_error if error.get("type") == "payment" else ApiError
        return make(code, message, details=details)
    if status == 503 and code in {Code.SETTLEMENT_PENDING, Code.UNAVAILABLE}:
        return ApiError(code, message, details=details)
    if status == 401:  # our own signature was refused: nothing was started by this, and may have been before
        log_refused_signature(body)
    return None


def _told(payment: Payment, paid: OfferedPayment, transaction: str) -> JsonObject:
    return {
        "success": True,
        "status": "success",
        "transaction": transaction,
        "network": payment.network,
        "amount": str(paid.value),
        "payer": shown_address(paid.key.payer),
        "errorReason": None,
    }
