"""The paid request, top to bottom, in the order of contract 4.2 (specification 1.2, 1.3, 3).

    slug (404) -> method (405) -> size (413) -> can it be forwarded (400) -> bearer (401) -> proof of payment (402)
    -> decode and signature -> spend a held credit -> buy (terms, verify, claim, settle, grant and spend) -> forward

Spending precedes buying, so that bought credits outlive every change of price, address and validity. A credit is spent
before the first byte goes to the target and is durable by then; what happens to the call afterwards cannot undo it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from tollkeeper.api import bearer_token, clock_ms, error_envelope, header_pairs, iso, send_answer
from tollkeeper.core.challenge import Profile, exhausted_body, profile_of
from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.networks import normalise
from tollkeeper.core.purchases import Spend, credit_token, header_hash, purchase_of_token
from tollkeeper.core.verification import form_checks, payment_key, refusal, require, signature_check
from tollkeeper.core.wire import EvmPayload, decode_payment_header
from tollkeeper.gateway.buying import Buyer, Presented
from tollkeeper.gateway.calls import Call, cors, preflight, receipt_headers
from tollkeeper.gateway.gates import not_found
from tollkeeper.storage.purchases import SpendRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.auth import Auth
    from tollkeeper.core.verification import EvmAsset
    from tollkeeper.gateway.buying import Buying
    from tollkeeper.gateway.delivery import Delivery
    from tollkeeper.gateway.gates import Gates, OpenGate
    from tollkeeper.gateway.inbox import Inbox
    from tollkeeper.gateway.traffic import Traffic
    from tollkeeper.storage.purchases import Purchase, Purchases, SpendResult

VERIFIED_HEADERS_MAX: Final = 10_000


class ExhaustedError(Exception):
    """The payment's credits are used up here: answered as if unpaid, so that a client may pay again."""


@dataclass(slots=True, kw_only=True)
class Access:
    """Answers calls of PayGates. `verified` keeps headers that passed, bounded."""

    gates: Gates
    purchases: Purchases
    buying: Buying
    delivery: Delivery
    traffic: Traffic
    auth: Auth
    assets: Callable[[], Mapping[str, EvmAsset]]
    token_keys: Sequence[bytes]
    profile: Profile
    body_limit_bytes: int
    verified: OrderedDict[bytes, Presented] = field(default_factory=OrderedDict)

    async def answer(self, scope: HTTPScope, receive: Receive, send: Send, slug: str) -> None:
        """Answers one request at a slug."""
        call = Call.of(scope)
        try:
            opened = await self._open(slug, call)
            if call.is_preflight:
                await preflight(send, opened.gate, call)
                return
            call.check_method(opened.gate)
            call.check_size(self.body_limit_bytes)
            call.check_forwardable(opened.target)
            if opened.gate.require_auth:
                await self.auth.authenticate(bearer_token(call.header))
            if not call.has_proof:
                await self._challenge(send, opened, call)
                return
        except ApiError as error:
            await self._send_error(send, call, error)
            return
        async with call.reading(receive, self.body_limit_bytes) as inbox:
            await self._answer_paid(send, opened, call, inbox)

    async def _open(self, slug: str, call: Call) -> OpenGate:
        """The gate. A deleted one is there for payments that were claimed before (contract 2). Raises: NOT_FOUND."""
        try:
            return await self.gates.by_slug(slug)
        except ApiError as error:
            if error.code is not Code.NOT_FOUND or not call.has_proof:
                raise
            return await self.gates.deleted(slug)

    async def _answer_paid(self, send: Send, opened: OpenGate, call: Call, inbox: Inbox) -> None:
        """From the proof of payment on: a credit is spent, held or bought, and the call goes to the target."""
        buyer = Buyer(SpendRequest(opened.gate.id, opened.gate.version, None, call.request_id))
        try:
            opened, purchase = await inbox.unless_gone(self._take_credit(opened, call, buyer))
        except ExhaustedError:
            await self._exhausted(send, opened, call)
        except ApiError as error:
            await self._refuse(send, opened, call, error, buyer)
        else:
            receipts = receipt_headers(purchase)
            if buyer.claimed == purchase.id:
                receipts.append(self._credit_token(purchase.id))
            await self.delivery.deliver(send, opened, call, inbox, purchase, receipts)

    async def _take_credit(self, opened: OpenGate, call: Call, buyer: Buyer) -> tuple[OpenGate, Purchase]:
        """Spends one credit for this call: by its credit token, or by its payment where the token holds none.

        Returns the gate as it is by then. Raises: the refusal, ExhaustedError.
        """
        deadline = asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS
        if call.credit_token:
            try:
                return await self._spend_by_token(opened, call, deadline)
            except (ApiError, ExhaustedError) as refused:
                is_pending = isinstance(refused, ApiError) and refused.status == 503
                if is_pending or not call.payment:
                    raise
        return await self._spend_or_buy(opened, self.read_payment(call.payment), call, buyer, deadline)

    def _credit_token(self, purchase_id: str) -> tuple[bytes, bytes]:
        return b"x-credit-token", credit_token(self.token_keys[0], purchase_id).encode()

    def _wish(self, opened: OpenGate, call: Call, presented: Presented | None) -> SpendRequest:
        header = None if presented is None else header_hash(presented.header)
        return SpendRequest(opened.gate.id, opened.gate.version, header, call.request_id)

    def read_payment(self, headers: Sequence[bytes]) -> Presented:
        """Decodes the payment header and checks form and signature.

        Only a byte-identical header that passed before skips it. Raises: the refusal.
        """
        if len(headers) != 1:
            raise payment_error(Code.PAYMENT_INVALID, "X-Payment is there more than once")
        header = headers[0]
        known = self.verified.get(header)
        if known is not None:
            self.verified.move_to_end(header)
            return known
        payment = decode_payment_header(header)
        assets = self.assets()
        require(form_checks(payment, assets))
        payload = payment.payload
        assert isinstance(payload, EvmPayload)  # noqa: S101 - form_checks let nothing else through
        asset = assets[normalise(payment.network).name]
        check = signature_check(payload, asset)
        if not check.ok:
            raise refusal(check)
        presented = Presented(payment, payment_key(asset, payload), header)
        self.verified[header] = presented
        if len(self.verified) > VERIFIED_HEADERS_MAX:
            self.verified.popitem(last=False)
        return presented

    async def _spend_or_buy(
        self, opened: OpenGate, presented: Presented, call: Call, buyer: Buyer, deadline: float
    ) -> tuple[OpenGate, Purchase]:
        """Spends a held credit of this payment or buys with it. Raises: the refusal, ExhaustedError."""
        while True:
            buyer.wish = self._wish(opened, call, presented)
            result = await self.purchases.spend(presented.key, buyer.wish, clock_ms())
            if result.outcome is Spend.SPENT:
                return opened, _spent(result)
            if result.outcome is Spend.STALE:
                opened = await self.gates.reload(opened.gate.slug)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                bought = await self._buy(opened, presented, buyer, deadline)
                if bought is not None:
                    return await self.gates.current(opened), _spent(bought)
                opened = await self.gates.reload(opened.gate.slug)
            else:
                await self._settle_outcome(result, deadline)

    async def _buy(self, opened: OpenGate, presented: Presented, buyer: Buyer, deadline: float) -> SpendResult | None:
        gate = opened.gate
        if not gate.is_enabled:
            raise ApiError(Code.NOT_FOUND, "this PayGate sells nothing at present")
        if presented.key.network != gate.network:
            raise payment_error(
                Code.INVALID_NETWORK,
                "the payment is for another network",
                details={"reason": "invalid_network", "expected": gate.network, "found": presented.key.network},
            )
        return await self.buying.buy(opened, presented, buyer, deadline)

    async def _spend_by_token(self, opened: OpenGate, call: Call, deadline: float) -> tuple[OpenGate, Purchase]:
        purchase_id = purchase_of_token(self.token_keys, call.credit_token)
        while True:
            wish = self._wish(opened, call, None)
            if purchase_id is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            result = await self.purchases.spend_token(purchase_id, wish, clock_ms())
            if result.outcome is Spend.SPENT:
                return opened, _spent(result)
            if result.outcome is Spend.STALE:
                opened = await self.gates.reload(opened.gate.slug)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED, Spend.FOREIGN}:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token holds nothing at this PayGate")
            else:
                await self._settle_outcome(result, deadline)

    async def _settle_outcome(self, result: SpendResult, deadline: float) -> None:
        """What the other outcomes of asking for a credit mean. Returns when it is worth asking again."""
        purchase = result.purchase
        assert purchase is not None  # noqa: S101 - every outcome but UNKNOWN has one
        if result.outcome is Spend.IN_FLIGHT:
            await self.buying.wait_decided(purchase, deadline)
        elif result.outcome is Spend.EXHAUSTED:
            raise ExhaustedError
        elif result.outcome is Spend.WITHHELD:
            raise ApiError(
                Code.CREDIT_TOKEN_REQUIRED,
                "credits are left, but they are held by other bytes or by the credit token",
                details={"purchaseId": purchase.id},
            )
        elif result.outcome is Spend.PARKED:
            raise self.buying.pending(purchase)
        else:
            _foreign(purchase)

    async def _challenge(self, send: Send, opened: OpenGate, call: Call) -> None:
        if not opened.gate.is_enabled:
            raise not_found()
        profile = profile_of(call.accept, self.profile)
        self.traffic.challenged(opened.gate.id)
        await send_answer(send, 402, opened.challenge.body(profile, iso(clock_ms())), cors())

    async def _exhausted(self, send: Send, opened: OpenGate, call: Call) -> None:
        if opened.is_deleted:
            await self._send_error(send, call, not_found())
            return
        detail = ApiError(Code.CREDITS_EXHAUSTED, "the credits of this payment are used up; sign a new payment").body()
        profile = profile_of(call.accept, self.profile)
        body = exhausted_body(opened.challenge, detail, profile, iso(clock_ms()))
        self.traffic.challenged(opened.gate.id)
        await send_answer(send, 402, body, cors())

    async def _refuse(self, send: Send, opened: OpenGate, call: Call, error: ApiError, buyer: Buyer) -> None:
        """The refusal of contract 4.5: beside a refused payment stand the requirements, so that a client can tell."""
        error.at_gate()
        if opened.is_deleted and error.status != 503:
            await self._send_error(send, call, not_found())
        elif error.code is Code.SETTLEMENT_PENDING and buyer.claimed is not None:
            await self._send_error(send, call, error, [self._credit_token(buyer.claimed)])
        elif error.status == 402:
            body = error_envelope(error, call.request_id, opened.challenge.siblings)
            await send_answer(send, 402, body, [*header_pairs(error.headers), *cors()])
        else:
            await self._send_error(send, call, error)

    async def _send_error(
        self, send: Send, call: Call, error: ApiError, also: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        headers = [*header_pairs(error.headers), *cors(), *also]
        await send_answer(send, error.status, error_envelope(error, call.request_id), headers)


def _spent(result: SpendResult) -> Purchase:
    assert result.outcome is Spend.SPENT  # noqa: S101 - every other outcome was answered
    assert result.purchase is not None  # noqa: S101
    return result.purchase


def _foreign(purchase: Purchase) -> NoReturn:
    details = {"reason": "duplicate_settlement", "transaction": purchase.transaction_hash or ""}
    raise payment_error(Code.NONCE_ALREADY_USED, "this payment was presented at another PayGate", details=details)
