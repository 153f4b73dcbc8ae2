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
from litestar import Response

from tollkeeper.api import HttpRequest, clock_ms, iso, json_body, ok
from tollkeeper.core.api.errors import ApiError, Code, payment_error
from tollkeeper.core.paygates.challenge import Profile, profile_of
from tollkeeper.core.purchases import SETTLEMENT_FAILED
from tollkeeper.core.wallets import shown_address
from tollkeeper.core.x402.version1 import X402_VERSION, encode_header
from tollkeeper.core.x402.version2 import (
    PAYMENT_HEADERS,
    PAYMENT_REQUIRED_HEADER,
    RECEIPT_HEADER,
    SETTLEMENT_PENDING,
    in_version_1,
    receipt_of,
)
from tollkeeper.describing import route
from tollkeeper.gateway.facilitator.client import HubUnreachableError, log_refused_signature
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.transfers.request import refused_transfer

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.payment_offers import OfferedPayment
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.gateway.facilitator.client import HubClient
    from tollkeeper.gateway.transfers.foreign import ForeignTransfers
    from tollkeeper.gateway.transfers.request import TransferRequest, TransferRequests

_DONE: Final = 200
_NO_STORE: Final = {"Cache-Control": "no-store"}


@dataclass(slots=True, kw_only=True)
class DirectTransfers:
    """The endpoint. `hub_url` is the hub's public URL, where anybody can follow a payment."""

    requests: TransferRequests
    hub: HubClient
    hub_url: str
    profile: Profile
    foreign: ForeignTransfers

    async def make(self, transfer: TransferRequest, payment: Payment, paid: OfferedPayment) -> JsonObject:
        """Carry out what this payment pays, and return the hub's transfer body.

        Raises: the refusal; SETTLEMENT_PENDING, UNAVAILABLE.
        """
        if self.requests.supported().is_ours:
            return await self._make_at_hub(transfer, payment, paid)
        body, named = await self.foreign.make(transfer, payment, paid, self.requests.terms(transfer, paid))
        if body is None:
            raise self._pending(paid.key, named)
        return body

    async def _make_at_hub(self, transfer: TransferRequest, payment: Payment, paid: OfferedPayment) -> JsonObject:
        await self._require_good(paid, self.hub.asked_of(payment, self.requests.terms(transfer, paid)))
        body = _asked_of_hub(payment, transfer, paid.value)
        key = f"transfer-{hashlib.sha256(body).hexdigest()}"
        answer = await self.hub.transfer(self.hub.transfer_request(body, key=key, wait_seconds=transfer.wait_seconds))
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
            verdict = await self.hub.verify(asked)
            if verdict.is_valid or await self.hub.payment_status(paid.key) is not None:
                return
        except (ApiError, HubUnreachableError):
            raise self._pending(paid.key, "") from None
        raise refused_transfer(verdict.reason or "invalid_payment", verdict.transaction or "")

    def _pending(self, key: PaymentKey, transaction: str) -> ApiError:
        return ApiError(
            Code.SETTLEMENT_PENDING,
            "the outcome of this transfer is not known yet: send the same payment again, do not sign a new one",
            details={"transaction": transaction, "statusUrl": self.hub_url + key.status_path, "network": key.network},
        )


def transfer_routes(transfers: DirectTransfers) -> list[HTTPRouteHandler]:
    """Make the route handler."""

    @route(operations.TRANSFER)
    async def transfer(request: HttpRequest) -> Response[bytes]:
        """Answer 402 without a payment, and with the hub's transfer body for one (contract 8)."""
        described = await transfers.requests.read(await json_body(request), request.headers)
        shown = {name: found for name in PAYMENT_HEADERS if (found := request.headers.getall(name.decode("ascii"), []))}
        if not shown:
            profile, asked = profile_of(request.headers.get("accept", ""), transfers.profile), clock_ms()
            challenge = transfers.requests.challenge(described)
            headers = {**_NO_STORE, PAYMENT_REQUIRED_HEADER: challenge.header}
            body = challenge.body(profile, iso(asked))
            return Response(body, status_code=402, headers=headers, media_type="application/json")
        payment, paid = transfers.requests.payment(described, shown)
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
    code, message = Code(error["code"]), str(error.get("message", ""))
    details = error.get("details") if isinstance(error.get("details"), dict) else None
    if status == 400:
        make = payment_error if error.get("type") == "payment" else ApiError
        return make(code, message, details=details)
    if status == 503 and code in {Code.SETTLEMENT_PENDING, Code.UNAVAILABLE}:
        return ApiError(code, message, details=details)
    if status == 401:  # our own signature was refused: nothing was started by this, and may have been before
        log_refused_signature(body)
    return None
