"""The paid request, top to bottom, in the order of contract 4.2 (specification 1.2, 1.3, 3).

    slug (404) -> method (405) -> size (413) -> can it be forwarded (400) -> bearer (401) -> proof of payment (402)
    -> decode and signature -> spend a held credit -> buy (terms, verify, claim, settle, grant and spend) -> forward

Spending precedes buying, so that bought credits outlive every change of price, address and validity. A credit is spent
before the first byte goes to the target and is durable by then; what happens to the call afterwards cannot undo it.

`PaidCall` is one request: the methods of this class stand in the order in which a request meets them. It goes by
callbacks: a 402 is answered within the parser's own call, and a call on a held credit waits twice, for the ledger's
commit and for the target. Whatever waits for more is a task, and `steps.Stage` says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.api import bearer_token, clock_ms, error_envelope, iso
from tollkeeper.core.challenge import Profile, exhausted_body, profile_of
from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.forwarding import response_lines
from tollkeeper.core.framing import BodyEnd
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.paygate_fields import RESERVED_SLUGS, is_slug
from tollkeeper.core.purchases import Spend, credit_token, purchase_of_token
from tollkeeper.edge.call import JSON_LINE
from tollkeeper.edge.relay import RelayRequest
from tollkeeper.gateway import calls
from tollkeeper.gateway.buying import Buyer
from tollkeeper.gateway.calls import CORS, OPEN_TO_PAGES
from tollkeeper.gateway.gates import not_found
from tollkeeper.gateway.signing import BodyAhead
from tollkeeper.gateway.steps import ExhaustedError, Stage, Steps
from tollkeeper.storage.purchase_rows import SpendRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from tollkeeper.auth import Auth
    from tollkeeper.edge.call import BodySource, InboundCall
    from tollkeeper.edge.forwarding import Forwarder
    from tollkeeper.edge.relay import Relay, ResponseHead
    from tollkeeper.edge.spool import SpooledBody
    from tollkeeper.gateway.buying import Buying, Presented
    from tollkeeper.gateway.gates import Gates, OpenGate
    from tollkeeper.gateway.proofs import Proofs
    from tollkeeper.gateway.traffic import Traffic
    from tollkeeper.storage.purchase_rows import Purchase, SpendResult
    from tollkeeper.storage.purchases import Purchases

CLIENT_GONE_STATUS: Final = 499  # recorded for a paid call whose client went away; nobody is sent it
_NO_WISH: Final = SpendRequest(0, 0, None, "")  # until it is known what is shown
_402_LINES: Final = JSON_LINE + CORS
_LOG = structlog.get_logger("tollkeeper.gateway.access")


@dataclass(slots=True, kw_only=True)
class Access:
    """Answers calls of PayGates (`edge.call.CallHandler`)."""

    gates: Gates
    purchases: Purchases
    buying: Buying
    forwarder: Forwarder
    traffic: Traffic
    auth: Auth
    proofs: Proofs
    token_keys: Sequence[bytes]
    profile: Profile
    body_limit_bytes: int
    random_bytes: Callable[[int], bytes]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    charging: set[asyncio.Future[SpendResult]] = field(default_factory=set)  # what may take a credit, never cancelled

    def takes(self, target: bytes) -> bool:
        """The first path segment, as it was sent, is a slug or it is not (security A-18)."""
        slug = target[1:].partition(b"?")[0].partition(b"/")[0].decode("latin-1")
        return is_slug(slug) and slug.lower() not in RESERVED_SLUGS

    def begin(self, call: InboundCall) -> None:
        """Answers one request at a slug."""
        PaidCall(self, call).arrive()

    def ended(self, call: InboundCall) -> None:
        """See `CallHandler`; a call tells its own end."""

    async def aclose(self) -> None:
        """Gives up what still waits: the listener has waited as long as it may. A commit under way is waited for."""
        for task in self.tasks:
            task.cancel()
        while waiting := self.tasks | self.charging:
            await asyncio.wait(waiting)


class PaidCall(Steps):
    """One request at a PayGate. `opened` is the gate as it was last seen, `buyer` is there from the proof on."""

    __slots__ = ("access", "asked", "buyer", "is_charged", "opened", "purchase", "receipts", "relay")

    def __init__(self, access: Access, call: InboundCall) -> None:
        super().__init__(call, access.tasks)
        self.access = access
        self.asked = calls.asked_by(call)
        self.opened: OpenGate
        self.buyer: Buyer | None = None
        self.purchase: Purchase
        self.is_charged = False
        self.receipts = b""
        self.relay: Relay | None = None

    # 1. Slug. In memory; a task reads a gate that is not.

    def arrive(self) -> None:
        """A request came in."""
        self.call.on_gone = self._client_gone
        asked = self.asked
        if asked.is_below:
            self._answer_refusal(ApiError(Code.NOT_FOUND, "this PayGate has no paths below its slug"))
            return
        opened = self.access.gates.kept(asked.slug)
        if opened is None:
            self.in_task(self._open(asked.slug))
        else:
            self.guard(self._check, opened)

    async def _open(self, slug: str) -> None:
        """A deleted gate is there for payments that were claimed before (contract 2). Raises: NOT_FOUND."""
        try:
            opened = await self.access.gates.by_slug(slug)
        except ApiError as error:
            if error.code is not Code.NOT_FOUND or not self.asked.has_proof:
                raise
            opened = await self.access.gates.deleted(slug)
        self._check(opened)

    # 2. Method, size, can it be forwarded, bearer. A task asks for the session, where the gate requires one.

    def _check(self, opened: OpenGate) -> None:
        call, gate = self.call, opened.gate
        self.opened = opened
        if calls.is_preflight(call):
            self.enter(Stage.OVER)
            call.answer(204, calls.preflight_lines(gate, call), length_bytes=None)
            return
        calls.check_method(gate, call)
        calls.check_size(call, self.access.body_limit_bytes)
        calls.check_forwardable(call, self.asked, opened.target, opened.wire)
        if gate.require_auth:
            self.enter(Stage.LOGIN)
            self.in_task(self._log_in())
        else:
            self._ask_for_proof()

    async def _log_in(self) -> None:
        bearer = self.call.head.header.get(b"authorization", b"").decode("latin-1")
        await self.access.auth.authenticate(bearer_token({"authorization": bearer}))
        self._ask_for_proof()

    # 3. Proof of payment; decode and signature. Computing only.

    def _ask_for_proof(self) -> None:
        if not self.asked.has_proof:
            self._challenge()
            return
        self.buyer = buyer = Buyer(_NO_WISH, on_left=self._left)
        if self.call.head.header.get(b"x-credit-token"):
            self.enter(Stage.BUYING)
            self.in_task(self._take_credit(buyer))
            return
        presented = self.access.proofs.read([self.call.head.header[b"x-payment"]])
        self._spend(presented, buyer)

    # 4. Spend a held credit. Waits for the ledger's commit, together with every other call that waits for it.

    def _spend(self, presented: Presented, buyer: Buyer) -> None:
        self.enter(Stage.SPENDING)
        buyer.wish = self._wish(presented)

        def done(result: SpendResult | ApiError) -> None:
            self.guard(self._spent, result, presented, buyer)

        self.access.purchases.spend_soon(presented.key, buyer.wish, clock_ms(), done)

    def _wish(self, presented: Presented | None) -> SpendRequest:
        gate = self.opened.gate
        return SpendRequest(
            gate.id, gate.version, None if presented is None else presented.header_hash, self.call.request_id
        )

    def _spent(self, result: SpendResult | ApiError, presented: Presented, buyer: Buyer) -> None:
        if self.stage is Stage.OVER:
            # Committed means charged, though the client left meanwhile.
            if not isinstance(result, ApiError) and result.outcome is Spend.SPENT:
                self._end(CLIENT_GONE_STATUS)
        elif isinstance(result, ApiError):
            raise result
        elif result.outcome is Spend.SPENT:
            self._forward(self.opened, _purchase_of(result))
        else:
            self.enter(Stage.BUYING)
            self.in_task(self._buy_after(result, presented, buyer))

    # 5. Everything that is not a held credit of this payment: wait, buy, or spend by the credit token. In a task.

    async def _buy_after(self, result: SpendResult, presented: Presented, buyer: Buyer) -> None:
        opened, purchase = await self._spend_or_buy(presented, buyer, self._deadline(), result)
        self._forward(opened, purchase)

    async def _take_credit(self, buyer: Buyer) -> None:
        """Spends by the credit token, or by the payment beside it where the token holds none."""
        deadline = self._deadline()
        header = self.call.head.header
        try:
            opened, purchase = await self._spend_by_token(header[b"x-credit-token"].decode("latin-1"), deadline)
        except (ApiError, ExhaustedError) as refused:
            is_pending = isinstance(refused, ApiError) and refused.status == 503
            if is_pending or b"x-payment" not in header:
                raise
            presented = self.access.proofs.read([header[b"x-payment"]])
            opened, purchase = await self._spend_or_buy(presented, buyer, deadline, None)
        self._forward(opened, purchase)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS

    async def _spend_or_buy(
        self, presented: Presented, buyer: Buyer, deadline: float, result: SpendResult | None
    ) -> tuple[OpenGate, Purchase]:
        """Spends a held credit of this payment or buys with it; `result` is what asking said already.

        Returns the gate as it is by then. Raises: the refusal, ExhaustedError.
        """
        access = self.access
        while True:
            if result is None:
                buyer.wish = self._wish(presented)
                result = await self._charged(access.purchases.spend(presented.key, buyer.wish, clock_ms()))
            if result.outcome is Spend.SPENT:
                return self.opened, _purchase_of(result)
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                bought = await self._buy(presented, buyer, deadline)
                if bought is not None:
                    self.is_charged = True
                    return await access.gates.current(self.opened), _purchase_of(bought)
                await self._reload(deadline)
            else:
                await self._settle_outcome(result, deadline)
            result = None

    async def _charged(self, taking: Coroutine[Any, Any, SpendResult]) -> SpendResult:
        """Its result. It goes on where the client leaves meanwhile: what commits then is charged, and ended here."""
        future = asyncio.ensure_future(taking)
        self.access.charging.add(future)
        future.add_done_callback(self.access.charging.discard)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._left)
            raise

    def _left(self, taken: asyncio.Future[SpendResult]) -> None:
        """What was decided about a credit whose client had left by then."""
        if not taken.cancelled() and taken.exception() is None and taken.result().outcome is Spend.SPENT:
            self._end(CLIENT_GONE_STATUS)

    async def _reload(self, deadline: float) -> None:
        """The gate changed: as it is now. Raises: UNAVAILABLE where it does nothing else until `deadline`."""
        if asyncio.get_running_loop().time() >= deadline:
            message = "the PayGate changes all the time; nothing was charged, send the same payment again"
            raise ApiError(Code.UNAVAILABLE, message)
        self.opened = await self.access.gates.reload(self.opened.gate.slug)

    async def _buy(self, presented: Presented, buyer: Buyer, deadline: float) -> SpendResult | None:
        gate = self.opened.gate
        if not gate.is_enabled:
            raise ApiError(Code.NOT_FOUND, "this PayGate sells nothing at present")
        if presented.key.network != gate.network:
            raise payment_error(
                Code.INVALID_NETWORK,
                "the payment is for another network",
                details={"reason": "invalid_network", "expected": gate.network, "found": presented.key.network},
            )
        return await self.access.buying.buy(self.opened, presented, buyer, deadline)

    async def _spend_by_token(self, token: str, deadline: float) -> tuple[OpenGate, Purchase]:
        access = self.access
        purchase_id = purchase_of_token(access.token_keys, token)
        while True:
            if purchase_id is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            result = await self._charged(access.purchases.spend_token(purchase_id, self._wish(None), clock_ms()))
            if result.outcome is Spend.SPENT:
                return self.opened, _purchase_of(result)
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED, Spend.FOREIGN}:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token holds nothing at this PayGate")
            else:
                await self._settle_outcome(result, deadline)

    async def _settle_outcome(self, result: SpendResult, deadline: float) -> None:
        """What the other outcomes of asking for a credit mean. Returns when it is worth asking again."""
        purchase = result.purchase
        assert purchase is not None  # noqa: S101 - every outcome but UNKNOWN has one
        if result.outcome is Spend.IN_FLIGHT:
            await self.access.buying.wait_decided(purchase, deadline)
        elif result.outcome is Spend.EXHAUSTED:
            raise ExhaustedError
        elif result.outcome is Spend.WITHHELD:
            raise ApiError(
                Code.CREDIT_TOKEN_REQUIRED,
                "credits are left, but they are held by other bytes or by the credit token",
                details={"purchaseId": purchase.id},
            )
        elif result.outcome is Spend.PARKED:
            raise self.access.buying.pending(purchase)
        else:
            raise calls.spent_elsewhere(purchase)

    # 6. Forward. Waits for the target; the request's body flows as fast as the target takes it.

    def _forward(self, opened: OpenGate, purchase: Purchase) -> None:
        self.enter(Stage.FORWARDING)
        access, call = self.access, self.call
        self.opened = opened
        self.purchase = purchase
        self.receipts = calls.receipt_lines(purchase)
        if self.buyer is not None and self.buyer.claimed == purchase.id:
            self.receipts += self._credit_token_line(purchase.id)
        length = call.head.content_length
        body = b"" if length == 0 else calls.BoundedBody(call, access.body_limit_bytes, self._excess)
        if not opened.wire.secrets:
            self._send(body, length, b"")
        elif isinstance(body, bytes):
            self._sign(body, body)
        else:
            BodyAhead(body, self._sign).start(length)

    def _sign(self, signed: bytes | None, body: bytes | BodySource) -> None:
        """Where the gate signs: `signed` is the body as far as the signature covers it, None for one too long."""
        if self.stage is Stage.OVER:
            return
        lines = calls.signature_of(self.call, self.opened, self.asked, self.purchase, signed, self.access.random_bytes)
        self._send(body, len(body) if isinstance(body, bytes) else self.call.head.content_length, lines)

    def _send(self, body: bytes | BodySource, length: int | None, signature: bytes) -> None:
        call, opened = self.call, self.opened
        head = calls.target_head(call, opened, self.asked, self.purchase, length, signature)
        self.relay = self.access.forwarder.relay(RelayRequest(opened.target, call.method, head, body, length), self)
        self.relay.start()

    def _excess(self) -> None:
        if self.relay is not None:
            self.relay.close()
        self.on_refusal(calls.too_large(self.access.body_limit_bytes))

    # 7. The answer, with the receipt. Called by the relay.

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        """The target answered: status, headers and body go on, filtered (contract 4.7)."""
        if self.stage is Stage.OVER:
            if not isinstance(body, list):
                body.close()
            return
        self.guard(self._answer, head, body, size_bytes)

    def _answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        call, status = self.call, head.status
        lines, has_date = response_lines(head.headers)
        lines += self.receipts + OPEN_TO_PAGES
        if not isinstance(body, list):
            self.in_task(self._answer_from_disk(status, lines, body, has_date=has_date))
            return
        self._end(status)
        if head.framing.end is BodyEnd.NONE:  # to HEAD the target's own word; 204 and 304 state none
            length_bytes = None if status in (204, 304) else head.framing.declared_bytes
            call.answer(status, lines, length_bytes=length_bytes, has_date=has_date)
        else:
            call.answer_parts(status, lines, body, size_bytes, has_date=has_date)

    async def _answer_from_disk(self, status: int, lines: bytes, body: SpooledBody, *, has_date: bool) -> None:
        """Reads as fast as the client does."""
        try:
            self.call.start(status, lines, body.size_bytes, has_date=has_date)
            async for data in body:
                await self.call.write(data)
        finally:
            body.close()
        self._end(status)
        self.call.end()

    def on_refusal(self, error: BaseException) -> None:
        """The target failed: a 502 with the receipt, and the credit is consumed (contract 4.5)."""
        if self.stage is not Stage.OVER:
            self.guard(self._answer_failure, error)

    def _answer_failure(self, error: BaseException) -> None:
        if not isinstance(error, ApiError):
            self._end(500, failed=True)
            self.call.fail(error)
            return
        slug, request_id = self.opened.gate.slug, self.call.request_id
        _LOG.info("target_failed", code=error.code.value, slug=slug, request_id=request_id)
        self._end(error.status, failed=error.status == 502)
        self.call.refuse(error, self.receipts + CORS)

    def _end(self, status: int, *, failed: bool = False) -> None:
        self.enter(Stage.OVER)
        self.buyer = self.relay = None  # they name this call, and a circle waits for the collector
        self.access.traffic.ended(self.opened.gate.id, self.call.request_id, status, failed=failed)

    # Leaving early: each step above may end here.

    def _challenge(self) -> None:
        opened = self.opened
        if not opened.gate.is_enabled:
            raise not_found()
        self.enter(Stage.OVER)
        self.access.traffic.challenged(opened.gate.id)
        body = opened.challenge.body(self._profile(), iso(clock_ms()))
        self.call.answer(402, _402_LINES, body)

    def _profile(self) -> Profile:
        accept = self.call.head.header.get(b"accept", b"")
        return profile_of(accept.decode("latin-1"), self.access.profile) if b"=" in accept else self.access.profile

    def exhausted(self) -> None:
        """See `Steps`."""
        opened = self.opened
        if opened.is_deleted:
            self._answer_refusal(not_found())
            return
        self.enter(Stage.OVER)
        detail = ApiError(Code.CREDITS_EXHAUSTED, "the credits of this payment are used up; sign a new payment").body()
        body = exhausted_body(opened.challenge, detail, self._profile(), iso(clock_ms()))
        self.access.traffic.challenged(opened.gate.id)
        self.call.answer(402, JSON_LINE + CORS, body)

    def refuse(self, error: ApiError) -> None:
        """The refusal of contract 4.5: beside a refused payment stand the requirements, so that a client can tell."""
        buyer = self.buyer
        if buyer is None:
            self._answer_refusal(error)
            return
        error.at_gate()
        if self.opened.is_deleted and error.status != 503:
            self._answer_refusal(not_found())
        elif error.code is Code.SETTLEMENT_PENDING and buyer.claimed is not None:
            self._answer_refusal(error, self._credit_token_line(buyer.claimed))
        elif error.status == 402:
            self.enter(Stage.OVER)
            body = error_envelope(error, self.call.request_id, self.opened.challenge.siblings)
            self.call.refuse(error, CORS, body)
        else:
            self._answer_refusal(error)

    def _answer_refusal(self, error: ApiError, lines: bytes = b"") -> None:
        self.enter(Stage.OVER)
        self.call.refuse(error, CORS + lines)

    def _credit_token_line(self, purchase_id: str) -> bytes:
        return b"x-credit-token: %b\r\n" % credit_token(self.access.token_keys[0], purchase_id).encode()

    def _client_gone(self) -> None:
        """The client left: what it waited for is given up; a purchase under way goes on without it."""
        self.give_up(CLIENT_GONE_STATUS)
        if self.task is not None:
            self.task.cancel()
        _LOG.info("client_gone", request_id=self.call.request_id)

    def give_up(self, status: int) -> None:
        """See `Steps`."""
        if self.relay is not None:
            self.relay.close()
        if self.stage is Stage.FORWARDING or (self.is_charged and self.stage is not Stage.OVER):
            self._end(status, failed=status == 500)
        self.stage = Stage.OVER


def _purchase_of(result: SpendResult) -> Purchase:
    assert result.outcome is Spend.SPENT  # noqa: S101 - every other outcome was answered
    assert result.purchase is not None  # noqa: S101
    return result.purchase
