"""The paid request, top to bottom, in the order of contract 4.2 (specification 1.2, 1.3, 3).

    slug (404) -> method (405) -> rate limit (429) -> size (413) -> can it be forwarded (400) -> bearer (401)
    -> proof of payment (402; 404 where the gate sells nothing at present) -> decode, signature, a wallet's payer (403)
    -> spend a held credit -> buy (404 as above, terms, verify, claim, settle, grant and spend) -> forward

Before the first of them stands `entrance`: a head that got a 402 at this very gate gets it again without a call. One
that spent a credit here goes a straight way (`again`, by what `held` says) and comes here where it leaves that.

Spending precedes buying, so that bought credits outlive every change of price, address and validity. A credit is spent
before the first byte goes to the target and is durable by then; it is given back before a 503 of ours, and before a 502
where the gate says so.

`PaidCall` is one request: the methods of this class stand in the order in which a request meets them. Its state is the
table in `steps`: `Stage` says what a request waits for, `NEXT` what may follow. It goes by callbacks: a 402 is answered
within the parser's own call, and a call on a held credit waits twice, for the ledger's commit and for the target.
Whatever waits for more is a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from tollkeeper.api import clock_ms, envelope, error_envelope, iso
from tollkeeper.core.challenge import exhausted_body
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.framing import BodyEnd
from tollkeeper.core.paygate_fields import CreditBinding
from tollkeeper.core.purchases import Spend, credit_token
from tollkeeper.core.statistics import CLIENT_GONE_STATUS
from tollkeeper.edge.call import JSON_LINE
from tollkeeper.edge.relay import RelayRequest
from tollkeeper.gateway import calls, heads
from tollkeeper.gateway.buying import Buyer
from tollkeeper.gateway.crediting import Crediting, Parts, purchase_of_spend
from tollkeeper.gateway.gates import not_found
from tollkeeper.gateway.heads import CORS
from tollkeeper.gateway.held import held_again
from tollkeeper.gateway.limiting import PROOFS, PROOFS_OF_PAYERS
from tollkeeper.gateway.ownership import login_required
from tollkeeper.gateway.signing import BodyAhead
from tollkeeper.gateway.steps import GIVEN_UP_CODES, ExhaustedError, Stage
from tollkeeper.gateway.streaming import StreamedParts
from tollkeeper.gateway.unpaid import UNPAID_LINES
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tollkeeper.core.downloads import StoredFile
    from tollkeeper.edge.call import BodySource, InboundCall
    from tollkeeper.edge.heads import ResponseHead
    from tollkeeper.edge.relay import Relay
    from tollkeeper.edge.spool import SpooledBody
    from tollkeeper.gateway.buying import Presented
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.held import Held
    from tollkeeper.storage.purchase_rows import Purchase

_NO_WISH: Final = SpendRequest(0, 0, None, "")  # until it is known what is shown
_LOG = structlog.get_logger("tollkeeper.gateway.access")


class PaidCall(Crediting):
    """One request at a PayGate. How it gets a credit that it does not simply hold is `crediting`."""

    held: Held  # where its head came before
    purchase: Purchase  # that its credit was taken of
    receipts = b""
    relay: Relay | None = None

    def __init__(self, access: Parts, call: InboundCall) -> None:
        self.access = access
        self.call = call
        self.asked = call.head.notes or calls.asked_by(call)

    # 1. Slug. In memory; a task reads a gate that is not.

    def arrive(self) -> None:
        """A request came in."""
        self.call.on_gone = self._client_gone
        slug = self.asked.slug
        opened = self.access.gates.kept(slug)
        if opened is None:
            self.in_task(self._open(slug))
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

    # 2. Method, rate limit, size, can it be forwarded, bearer. A task asks for the session where the gate wants one.

    def _check(self, opened: OpenGate) -> None:
        call, gate = self.call, opened.gate
        self.opened = opened
        if calls.is_preflight(call):
            self.enter(Stage.OVER)
            call.answer(204, heads.preflight_lines(gate, call), length_bytes=None)
            return
        calls.check_method(gate, call)
        self.access.limit.check(call)
        calls.check_size(call, self.access.body_limit_bytes)
        calls.check_forwardable(call, self.asked, opened)
        if self.is_login_wanted():
            self.enter(Stage.LOGIN)
            self.in_task(self._log_in())
        else:
            self._ask_for_proof()

    async def _log_in(self) -> None:
        await self.log_in()
        self._ask_for_proof()

    # 3. Proof of payment; decode and signature. Computing only: a payment that was not seen before holds the loop for
    # some 70 microseconds, half of them its signature (performance 14 says why no thread recovers it).

    def _ask_for_proof(self) -> None:
        if self.opened.is_of_wallets:
            self._ask_wallet()
            return
        if not self.asked.has_proof:
            self._challenge()
            return
        self.buyer = buyer = Buyer(_NO_WISH, on_left=self.left)
        if self.call.head.header.get(b"x-credit-token"):
            self.enter(Stage.BUYING)
            self.in_task(self._take_credit(buyer))
            return
        presented = self.access.proofs.read([self.call.head.header[b"x-payment"]])
        self._spend(presented, buyer)

    def _ask_wallet(self) -> None:
        """Under `creditBinding: wallet` the payer's bearer is the proof, and the payment only buys (contract 4.3)."""
        header = self.call.head.header
        if b"x-payment" in header:
            self.buyer = Buyer(_NO_WISH, on_left=self.left)
            presented = self.access.proofs.read([header[b"x-payment"]])
            calls.check_payer(self.wallet or presented.key.payer, presented.key.payer)  # without a bearer: see `_buy`
            self._spend(presented, self.buyer)
        elif self.wallet is not None:
            self.enter(Stage.BUYING)
            self.in_task(self._take_of_wallet(self.wallet))
        elif self.asked.has_proof:
            raise login_required()
        else:
            self._challenge()

    # 4. Spend a held credit. Waits for the ledger's commit, together with every other call that waits for it. Where one
    # process has the database, that commit blocks the loop until the disk has it, unless the writing thread is at work
    # (`storage.sqlite.SqliteDatabase.post`); with several workers it is the ledger's process that waits for the disk.

    def _spend(self, presented: Presented, buyer: Buyer) -> None:
        self.enter(Stage.SPENDING)
        buyer.wish = self.wish(presented)

        def done(result: SpendResult | ApiError) -> None:
            self.guard(self._spent, result, presented, buyer)

        self.access.purchases.spend_soon(presented.key, buyer.wish, clock_ms(), done)

    def _spent(self, result: SpendResult | ApiError, presented: Presented, buyer: Buyer) -> None:
        if self.stage is Stage.OVER:
            # Committed means charged, though the client left meanwhile.
            if not isinstance(result, ApiError) and result.outcome is Spend.SPENT:
                self.end(CLIENT_GONE_STATUS)
        elif isinstance(result, ApiError):
            raise result
        elif result.outcome is Spend.SPENT:
            purchase = purchase_of_spend(result)
            self._keep_held(presented, purchase)
            self._forward(self.opened, purchase)
        else:
            self.enter(Stage.BUYING)
            self.in_task(self._buy_after(result, presented, buyer))

    def _keep_held(self, presented: Presented, purchase: Purchase) -> None:
        """Calls with the same bytes go the straight way from now on, if they can."""
        call, asked = self.call, self.asked
        asked.held = held_again(self.access, call, asked, self.opened, presented, purchase)
        call.head.is_again = asked.held is not None

    # A call that began as `again.CallAgain` comes here where its credit is not simply there, and to the two of
    # step 6 where its target's answer does not simply come.

    @classmethod
    def of_held(cls, call: InboundCall, held: Held) -> PaidCall:
        """The call, whose steps 1 to 3 are those of the call before (`held`), at its spend."""
        rest = cls(held.access, call)
        rest.held, rest.opened, rest.purchase = held, held.opened, held.purchase
        call.on_gone = rest._client_gone
        rest.enter(Stage.SPENDING)
        return rest

    def spent_again(self, result: int | SpendResult | ApiError) -> None:
        """The ledger's answer, which is not that a credit was taken, or its caller is gone."""
        presented = self.held.presented
        if isinstance(result, int):
            result = SpendResult(Spend.SPENT, replace(self.held.purchase, remaining=result))
        self.buyer = Buyer(self.wish(presented), on_left=self.left)
        self.guard(self._spent, result, presented, self.buyer)

    # 5. Everything else, in a task: wait, buy, or spend by token or wallet. Its commits block the loop as in step 4.

    async def _buy_after(self, result: SpendResult, presented: Presented, buyer: Buyer) -> None:
        opened, purchase = await self.spend_or_buy(presented, buyer, self.deadline(), result)
        self._forward(opened, purchase)

    async def _take_credit(self, buyer: Buyer) -> None:
        """Spends by the credit token, or by the payment beside it where the token holds none."""
        deadline = self.deadline()
        header = self.call.head.header
        try:
            opened, purchase = await self.spend_by_token(header[b"x-credit-token"].decode("latin-1"), deadline)
        except (ApiError, ExhaustedError) as refused:
            is_of_token = not isinstance(refused, ApiError) or refused.status in {402, 403}
            if not is_of_token or b"x-payment" not in header:
                raise
            presented = self.access.proofs.read([header[b"x-payment"]])
            opened, purchase = await self.spend_or_buy(presented, buyer, deadline, None)
            self._forward(opened, purchase, PROOFS_OF_PAYERS)
        else:
            self._forward(opened, purchase)

    async def _take_of_wallet(self, wallet: str) -> None:
        taken = await self.spend_of_wallet(wallet, self.deadline())
        if taken is None:
            self._challenge()
        else:
            self._forward(*taken)

    # 6. Forward. Waits for the target, and before that for a body that is signed, a mebibyte of which is held. A body
    # that is all there is sent at once (64 KiB at most were read ahead), others flow as fast as the target takes them.

    def _forward(self, opened: OpenGate, purchase: Purchase, proofs: Sequence[bytes] = PROOFS) -> None:
        """`proofs`: the headers of which the first one that is there got the credit."""
        self.enter(Stage.FORWARDING)
        access, call = self.access, self.call
        self.opened = opened
        self.purchase = purchase
        self.receipts = heads.receipt_lines(heads.receipt_start(purchase), purchase, purchase.remaining)
        access.limit.paid(call, PROOFS_OF_PAYERS if opened.is_of_wallets else proofs)
        if self.buyer is not None and self.buyer.claimed == purchase.id:
            access.limit.bought(call)
            self.receipts += self._credit_token_line(purchase.id)
        if opened.gate.file is not None:
            self._hand_over(opened.gate.file)
            return
        length, body = call.head.content_length, self._body()
        if not opened.wire.secrets:
            self._send(body, length, b"")
        elif isinstance(body, bytes):
            self._sign(body, body)
        else:
            BodyAhead(body, self._sign).start(length)

    def _hand_over(self, file: StoredFile) -> None:
        """A file PayGate forwards nothing: the answer is a link to what was bought (contract 4.8)."""
        body = envelope(self.access.files.bought(file, self.purchase.id, iso))
        self.end(200)
        self.call.answer(200, JSON_LINE + self.receipts + CORS, body)

    def _sign(self, signed: bytes | None, body: bytes | BodySource) -> None:
        """Where the gate signs: `signed` is the body as far as the signature covers it, None for one too long."""
        if self.stage is Stage.OVER:
            return
        lines = heads.signature_of(self.call, self.opened, self.asked, self.purchase, signed, self.access.random_bytes)
        self._send(body, len(body) if isinstance(body, bytes) else self.call.head.content_length, lines)

    def _send(self, body: bytes | BodySource, length: int | None, signature: bytes) -> None:
        call, opened = self.call, self.opened
        assert opened.target is not None  # noqa: S101 - a file was handed over
        head = heads.target_head(call, opened, self.asked, self.purchase, self._client(), length, signature=signature)
        request, forwarder = RelayRequest(opened.target, call.method, head, body, length), self.access.forwarder
        if opened.gate.stream:
            streamed = StreamedParts(self)
            self.relay = streamed.relay = forwarder.stream(request, streamed)
        else:
            self.relay = forwarder.relay(request, self)
        self.relay.start()

    def forward_again(self, head: bytes, left: int) -> None:
        """With so many credits left; no connection to its target was to be had at once."""
        self.guard(lambda: self.relay_again(head, left).start())

    def relay_again(self, head: bytes, left: int) -> Relay:
        """The exchange with the target, which is sent this head; whoever asks starts it, or did."""
        self.enter(Stage.FORWARDING)
        call, held = self.call, self.held
        self.receipts = heads.receipt_lines(held.receipt_start, held.purchase, left)
        request = RelayRequest(held.target, call.method, head, self._body(), call.head.content_length)
        self.relay = relay = self.access.forwarder.relay(request, self)
        return relay

    def _body(self) -> bytes | BodySource:
        """The request's: at once where all of it is there, else as it comes and as far as it may."""
        whole = None if self.call.head.content_length is None else self.call.whole_body()
        return calls.BoundedBody(self.call, self.access.body_limit_bytes, self._excess) if whole is None else whole

    def _client(self) -> str:
        return self.access.limit.clients.of(self.call.peer, self.call.head.headers)

    def _excess(self) -> None:
        """More of the request came than may: told by the relay, which knows whether the answer has begun."""
        error = calls.too_large(self.access.body_limit_bytes)
        if self.relay is None:
            self.on_refusal(error)
        else:
            self.relay.refuse(error)

    # 7. The answer, with the receipt. Called by the relay, which holds a mebibyte of it in memory and the rest on disk.

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        """The target answered: status, headers and body go on, filtered (contract 4.7)."""
        if self.stage is Stage.OVER:
            if not isinstance(body, list):
                body.close()
            return
        self.guard(self._answer, head, body, size_bytes)

    def _answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        call, status = self.call, head.status
        answered = head.notes or heads.answer_lines(head)
        lines, has_date = answered.lines + self.receipts, answered.has_date
        if not isinstance(body, list):
            self.in_task(self._answer_from_disk(status, lines, body, has_date=has_date))
            return
        self.end(status)
        if head.framing.end is BodyEnd.NONE:  # to HEAD the target's own word; 204 and 304 state none
            length_bytes = None if status in (204, 304) else head.framing.declared_bytes
            call.answer(status, lines, length_bytes=length_bytes, has_date=has_date)
        else:
            call.answer_parts(status, lines, body, size_bytes, has_date=has_date)

    def on_stream(self, head: ResponseHead, parts: AsyncIterator[bytes]) -> None:
        """The target answers, and its gate passes that on as it comes."""
        if self.stage is not Stage.OVER:
            self.in_task(self._answer_as_it_comes(head, parts))

    async def _answer_as_it_comes(self, head: ResponseHead, parts: AsyncIterator[bytes]) -> None:
        """Reads as fast as the client does. Too late for a 502: what breaks off is cut, and the credit consumed."""
        answered = heads.answer_lines(head)
        lines = answered.lines + self.receipts
        self.call.start(head.status, lines, head.framing.declared_bytes, has_date=answered.has_date)
        try:
            async for data in parts:
                await self.call.write(data)
        except ApiError as error:
            slug, request_id = self.opened.gate.slug, self.call.request_id
            _LOG.info("stream_cut", code=error.code.value, slug=slug, request_id=request_id)
            self.end(head.status, error.code, failed=True)
            self.call.abort()
        else:
            self.end(head.status)
            self.call.end()

    async def _answer_from_disk(self, status: int, lines: bytes, body: SpooledBody, *, has_date: bool) -> None:
        """Reads as fast as the client does."""
        try:
            self.call.start(status, lines, body.size_bytes, has_date=has_date)
            async for data in body:
                await self.call.write(data)
        finally:
            body.close()
        self.end(status)
        self.call.end()

    def on_refusal(self, error: BaseException) -> None:
        """Our own answer with the receipt; the credit is consumed, or given back (`calls.is_given_back`)."""
        if self.stage is not Stage.OVER:
            self.guard(self._answer_failure, error)

    def _answer_failure(self, error: BaseException) -> None:
        if not isinstance(error, ApiError):
            self.end(500, Code.INTERNAL_ERROR, failed=True)
            self.call.fail(error)
            return
        event = "target_failed" if error.status == 502 else "call_failed"
        _LOG.info(event, code=error.code.value, slug=self.opened.gate.slug, request_id=self.call.request_id)
        if calls.is_given_back(self.opened.gate, error):
            self.give_back(error, lambda remaining: self._answer_given_back(error, remaining))
            return
        self.end(error.status, error.code, failed=True)
        self.call.refuse(error, self.receipts + CORS)

    def _answer_given_back(self, error: ApiError, remaining: int | None) -> None:
        """Says so; where the database could not, the credit stays consumed."""
        if remaining is not None:
            self.receipts = heads.receipt_lines(heads.receipt_start(self.purchase), self.purchase, remaining)
            if self.buyer is not None and self.buyer.claimed == self.purchase.id:
                self.receipts += self._credit_token_line(self.purchase.id)
        self.end(error.status, error.code, failed=True)
        self.call.refuse(error, self.receipts + CORS)

    def end(self, status: int, code: Code | None = None, *, failed: bool = False) -> None:
        """See `Crediting`."""
        self.enter(Stage.OVER)
        self.buyer = self.relay = None  # they name this call, and a circle waits for the collector
        bought = getattr(self, "purchase", None)  # a client may leave before it is known
        gate_id, purchase_id = self.opened.gate.id, bought and bought.id
        self.access.traffic.ended(gate_id, self.call, status, purchase_id, code, failed=failed)

    # Leaving early: each step above may end here.

    def _challenge(self) -> None:
        opened = self.opened
        if not opened.gate.is_enabled:
            raise not_found()
        shown = calls.challenge_on(opened, self.call)
        profile = calls.profile_on(self.call, self.access.profile)
        head = self.call.head
        is_bare = head.method != "HEAD" and head.content_length == 0 and b"authorization" not in head.header
        if self.stage is Stage.ARRIVED and is_bare:
            # Nobody was asked, and nothing shown: this head, at this gate, is always answered so.
            self.asked.ready_402 = self.access.ready_402s.of(opened, shown, profile)
            head.may_be_ready = True
        self.enter(Stage.OVER)
        self.access.traffic.challenged(opened.gate.id, self.call)
        standing = self.access.limit.challenged(self.call)
        self.call.answer(402, UNPAID_LINES + standing, shown.body(profile, iso(clock_ms())))

    def exhausted(self, spent: ExhaustedError) -> None:
        """See `Steps`."""
        opened = self.opened
        if opened.is_deleted or not opened.gate.is_enabled:  # as if unpaid: nothing can be paid for
            self._answer_refusal(not_found(), self.access.limit.challenged(self.call))
            return
        self.enter(Stage.OVER)
        detail = calls.exhausted(spent.payer, is_unpaid=spent.is_unpaid).body()
        profile = calls.profile_on(self.call, self.access.profile)
        body = exhausted_body(calls.challenge_beside(opened, self.call), detail, profile, iso(clock_ms()))
        self.access.traffic.challenged(opened.gate.id, self.call)
        standing = self.access.limit.challenged(self.call)
        self.call.answer(402, UNPAID_LINES + standing, body)

    def refuse(self, error: ApiError) -> None:
        """The refusal, as contract 4.5 has it; `error.at_gate` gives a refused payment its status at a gate.

        nothing shown yet             as it is
        the gate is deleted           404, but for a 503
        its outcome is not known yet  503, with the credit token of the purchase that was claimed
        a refused payment: 402        the requirements stand beside it, so that a client can pay another; where the
                                      token counts, with that of the claim, which its next try needs
        anything else                 as it is
        """
        buyer = self.buyer
        if buyer is None:
            self._answer_refusal(error, self.access.limit.refused(self.call, error))
            return
        error.at_gate()
        standing = self.access.limit.refused(self.call, error)
        token = self._token_of_claim(buyer, error)
        if self.opened.is_deleted and error.status != 503:
            self._answer_refusal(not_found(), standing)
        elif error.status == 402:
            self.enter(Stage.OVER)
            self.access.traffic.refused(self.opened.gate.id, self.call, error)
            body = error_envelope(error, self.call.request_id, calls.challenge_beside(self.opened, self.call).siblings)
            self.call.refuse(error, CORS + standing + token, body)
        else:
            self._answer_refusal(error, standing + token)

    def _token_of_claim(self, buyer: Buyer, error: ApiError) -> bytes:
        """Its line, where the payment that it claimed must be presented again, and may need it."""
        is_public = error.status == 402 and self.opened.gate.credit_binding is CreditBinding.TOKEN
        if buyer.claimed is None or not (is_public or error.status == 503):
            return b""
        return self._credit_token_line(buyer.claimed)

    def _answer_refusal(self, error: ApiError, lines: bytes = b"") -> None:
        self.enter(Stage.OVER)
        opened = getattr(self, "opened", None)  # of an unknown slug there is none
        if opened is not None:
            self.access.traffic.refused(opened.gate.id, self.call, error)
        self.call.refuse(error, CORS + lines)

    def _credit_token_line(self, purchase_id: str) -> bytes:
        return b"x-credit-token: %b\r\n" % credit_token(self.access.token_keys[0], purchase_id).encode()

    def _client_gone(self) -> None:
        """The client left: what it waited for is given up; a purchase under way goes on without it."""
        if self.stage is Stage.OVER:  # it did not leave: the answer was cut here
            return
        self.give_up(CLIENT_GONE_STATUS)
        if self.task is not None:
            self.task.cancel()
        _LOG.info("client_gone", request_id=self.call.request_id)

    def give_up(self, status: int) -> None:
        """See `Steps`."""
        if self.relay is not None:
            self.relay.close()
        is_paid = self.stage is Stage.FORWARDING or (self.is_charged and self.stage is not Stage.OVER)
        if is_paid and self.is_cut and not (self.call.response_started or self.is_returning):
            self.give_back_unanswered()
        elif is_paid and not self.is_returning:
            self.end(status, GIVEN_UP_CODES.get(status), failed=status != CLIENT_GONE_STATUS)
        self.stage = Stage.OVER
