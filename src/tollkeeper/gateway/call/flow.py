"""The paid request, top to bottom, in the order of contract 4.2 (docs/specification.md; specification 1.2, 1.3, 3).

    1. slug (404; a deleted gate is there for whoever shows what was claimed at it)
    2. CORS preflight; method (405) -> rate limit (429) -> size (413) -> can it be forwarded (400, 404) -> bearer (401)
    3. proof of payment (402; 404, 503: nothing sold, or not now; 400: other network) -> decode, signature, payer (403)
    4. spend a held credit, by its token or as a payer (`credit_request`; `_prove`), too; else wait, or refuse
       (402 used up, 403 not by this proof, 503 unknown: `_wait_or_refuse`), or, where nothing is held,
    5. buy: a failed payment's next try (403) -> a wallet's payer (401, 403) -> enabled (404), network (402, 503) ->
       `attempt`: recipient, price, time -> verify -> claim -> settle -> grant and spend
    6. forward, and what is answered: `responder`, where each way stands in which a request ends

`Arriving` is one request until a credit is its own, `PaidCall` the request from first to last. Every rule of contract
4: docs/architecture.md 5.

Spending precedes buying, so that bought credits outlive every change of price, address and validity. So under `wallet`
nobody is told to log in who only shows again what he paid: 401 is for one who would buy, shows a token only, or nothing
that could be read. Elsewhere a payment beside a token is read once the token holds nothing. A credit is spent before
the first byte goes to the target and is durable by then. From `Access.aclose` on no call begins and no purchase (one
under way goes on: `PurchaseService.aclose`), and what a commit has taken by then is given back: 503.

A request's state is the table in `state`: `Stage` says what it waits for, `NEXT` what may follow, `Steps` what is
known of it. It goes by callbacks: a 402 is answered within the parser's own call, and a call on a held credit waits
twice, for the ledger's commit and for the target. Whatever waits for more is a task, but for a body to be signed.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from tollkeeper.api import clock_ms
from tollkeeper.core.api.errors import ApiError, ErrorType
from tollkeeper.core.http.client_addresses import rate_key
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.paygates.statistics import CLIENT_GONE_STATUS
from tollkeeper.core.purchases import Spend
from tollkeeper.edge.target.relay import RelayRequest
from tollkeeper.gateway.call import credit_refusals, request_facts
from tollkeeper.gateway.call import headers as heads
from tollkeeper.gateway.call.credit_refusals import ExhaustedError
from tollkeeper.gateway.call.credit_request import Asking
from tollkeeper.gateway.call.state import Stage
from tollkeeper.gateway.call.stream import StreamedParts
from tollkeeper.gateway.call.target_signature import BodyAhead
from tollkeeper.gateway.limiting import PROOFS, PROOFS_OF_PAYERS
from tollkeeper.gateway.management.ownership import login_required
from tollkeeper.gateway.purchase.attempt import PurchaseAttempt, Waiter
from tollkeeper.storage.ledger.purchase_rows import SpendResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.x402.presented_payment import PresentedPayment
    from tollkeeper.edge.server.call import BodySource, InboundCall
    from tollkeeper.gateway.call.context import Shared
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.storage.ledger.purchase_rows import Purchase


class Arriving(Asking):
    """One request at a PayGate, until a credit is its own."""

    def __init__(self, shared: Shared, call: InboundCall) -> None:
        self.shared = shared
        self.call = call
        self.asked = request_facts.asked_by(call)

    # 1. Slug. In memory; a task reads a gate that is not, by the reading thread, and makes its 402s: without a limit of
    # time, and again where the gate changes meanwhile; a deleted one each time, the claim of what is shown there, and
    # where wallets hold its credits the session of a bearer, as step 2 waits for it.

    def arrive(self) -> None:
        """A request came in."""
        if self.shared.is_stopping:
            self.cut_short()
            return
        self.call.on_gone = self._client_gone
        slug = self.asked.slug
        opened = self.shared.gates.kept(slug)
        if opened is None:
            self.in_task(self._open(slug))
        else:
            self.guard(self._check, opened)

    async def _open(self, slug: str) -> None:
        self._check(await self._or_deleted(slug, self.shared.gates.by_slug(slug)))

    # 2. Preflight, method, rate limit, size, can it be forwarded (its headers for the target are made here), bearer. A
    # task asks for the session where the gate wants one, or may serve a caller by it: by the reading thread, and where
    # a guest comes for the first time a commit of the writing one; or over HTTP where another hub issued it
    # (`auth.trusted`: 5 s a question, two at most). An EdDSA signature is checked in the loop.

    def _check(self, opened: OpenGate) -> None:
        call, gate = self.call, opened.gate
        self.opened = opened
        if request_facts.is_preflight(call):
            self.enter(Stage.OVER)
            call.answer(204, heads.preflight_lines(gate, call), length_bytes=None)
            return
        request_facts.check_method(gate, call)
        self.shared.limit.check(call)
        request_facts.check_size(call, self.shared.body_limit_bytes)
        request_facts.check_forwardable(call, self.asked, opened)
        if self._is_login_wanted():
            self.enter(Stage.LOGIN)
            self.in_task(self._log_in_first())
        else:
            self._take_proof()

    async def _log_in_first(self) -> None:
        await self._log_in()
        self._take_proof()

    # 3. Proof of payment; decode and signature. Computing only: a payment that was not seen before holds the loop for
    # some 100 microseconds, a third to a half of them its signature (performance 4 says why no thread recovers it).
    # Headers that a key signed are kept (`proofs`, bounded); a contract wallet's is read each time.

    def _take_proof(self) -> None:
        if self.opened.is_of_wallets:
            self._take_proof_of_wallet()
            return
        if not self.asked.has_proof:
            self._challenge()
            return
        self.buyer = buyer = Waiter(on_left=self.left)
        if self.call.head.header.get(b"x-credit-token"):
            self.enter(Stage.BUYING)
            self.in_task(self._take_credit(buyer))
            return
        self._spend(self._presented(), buyer)

    def _presented(self) -> PresentedPayment:
        """Read the payment that the call shows. Raises: the refusal."""
        self.presented = presented = self.shared.proofs.read(self.call.head.header, self.opened.offers)
        return presented

    def _take_proof_of_wallet(self) -> None:
        """Under `creditBinding: wallet` the payer's bearer is the proof, and the payment only buys (contract 4.3)."""
        if request_facts.shows_payment(self.call):
            self.buyer = Waiter(on_left=self.left)
            try:
                presented = self._presented()
            except ApiError as unreadable:
                if self.wallet is None and unreadable.type is ErrorType.PAYMENT:
                    raise request_facts.payers_bearer_required() from None
                raise
            # Without a wallet that is logged in, `_buy` asks for one.
            request_facts.check_payer(self.wallet or presented.key.payer, presented.key.payer)
            self._spend(presented, self.buyer)
        elif self.wallet is not None:
            self.enter(Stage.BUYING)
            self.in_task(self._take_of_wallet(self.wallet))
        elif self.asked.has_proof:
            raise login_required()
        else:
            self._challenge()

    # 4. Spend a held credit. Waits for the ledger's commit, together with every other call that waits for it. That
    # commit blocks the loop until the disk has it, unless the writing thread is at work or has to be
    # (`storage.sqlite.engine.SqliteDatabase.post`): then the loop lends it the interpreter, up to 2 ms at a time
    # (`storage.sqlite.gil_yield`). Where a file is sold, its store is asked before, in a task, for 5 s, and a commit of
    # the writing thread keeps it, unless it is kept for long enough (`credit_request._require_file`); so it is again
    # for the link.

    def _spend(self, presented: PresentedPayment, buyer: Waiter) -> None:
        if self.opened.gate.file is not None or presented.accepted is not None:
            self.enter(Stage.BUYING)
            self.in_task(self._buy_after(None, presented, buyer))
            return
        self.enter(Stage.SPENDING)
        buyer.wish = self._wish(presented)

        def done(result: SpendResult | ApiError) -> None:
            self.guard(self._spent, result, presented, buyer)

        self.shared.purchases.spend_soon(presented.key, buyer.wish, clock_ms(), done)

    def _spent(self, result: SpendResult | ApiError, presented: PresentedPayment, buyer: Waiter) -> None:
        is_taken = not isinstance(result, ApiError) and result.outcome is Spend.SPENT
        if self.stage is Stage.OVER:
            # Committed means charged, though the client left meanwhile.
            if is_taken:
                self.end(CLIENT_GONE_STATUS)
        elif isinstance(result, ApiError):
            raise result  # what it took after all is given back (`Ledger.refused`)
        elif self.shared.is_stopping:
            self.is_charged, self.is_cut = is_taken, True
            self.cut_short()
        elif result.outcome is Spend.SPENT:
            self._forward(self.opened, result.found)
        else:
            self.enter(Stage.BUYING)
            self.in_task(self._buy_after(result, presented, buyer))

    # The same by its token, or as the payer that its bearer shows, in a task: how, and what it waits for, is
    # `credit_request`.

    async def _take_credit(self, buyer: Waiter) -> None:
        """Spends by the credit token; where it holds none by the payment beside it, which may also buy."""
        deadline = self._deadline()
        header = self.call.head.header
        try:
            opened, purchase = await self._spend_by_token(header[b"x-credit-token"].decode("latin-1"), deadline)
        except (ApiError, ExhaustedError) as refused:
            holds_nothing = not isinstance(refused, ApiError) or refused.status == 403
            if not holds_nothing or not request_facts.shows_payment(self.call):
                raise
            opened, purchase = await self._spend_or_buy(self._presented(), buyer, deadline, None)
            self._forward(opened, purchase, PROOFS_OF_PAYERS)
        else:
            self._forward(opened, purchase)

    async def _take_of_wallet(self, wallet: str) -> None:
        taken = await self._spend_of_wallet(wallet, self._deadline())
        if taken is None:
            await self._check_token(wallet)
            self._challenge()
        else:
            self._forward(*taken)

    # 5. Buy, or wait for whoever does, or for our hub's word of a failed payment. In a task, which waits 30 s from the
    # arrival at most, then 503. Besides, as `credit_request`, it waits for commits, a login, gates, and transactions
    # that the reading thread looks up; and, once its claim is being written or its credit taken, until that is done.
    # What follows `_buy` is the payment's, not this request's; several requests with one wait for one attempt
    # (`purchase.service`).

    async def _buy_after(self, result: SpendResult | None, presented: PresentedPayment, buyer: Waiter) -> None:
        opened, purchase = await self._spend_or_buy(presented, buyer, self._deadline(), result)
        self._forward(opened, purchase)

    async def _spend_or_buy(
        self, presented: PresentedPayment, buyer: Waiter, deadline: float, result: SpendResult | None
    ) -> tuple[OpenGate, Purchase]:
        """Spends a held credit of this payment or buys with it; `result` is what asking said already.

        Returns the gate as it is by then. Raises: the refusal, ExhaustedError.
        """
        shared = self.shared
        await self._require_file()
        while True:
            if result is None:
                result = await self._ask(presented, buyer)
            if result.outcome is Spend.SPENT:
                return self.opened, result.found
            if result.outcome is Spend.UNKNOWN and (proven := await self._prove(presented, deadline)) is not None:
                result = proven
                continue
            if result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                await self._check_next_try(result.purchase)
                bought = await self._buy(presented, buyer, deadline, result.purchase)
                if bought is not None:
                    # It is charged from here on, so it is forwarded whatever its gate asks for by now.
                    self.is_charged, self.purchase = True, bought.found
                    return await shared.gates.current(self.opened), self.purchase
                await self._reload(deadline)
            elif self._may_spend_as_payer(presented, result):
                if not self.opened.is_of_wallets:
                    result = await self._charged(self._spend_withheld(result))
                    continue
                if (taken := await self._spend_as_payer(result.found, deadline)) is not None:
                    return taken
            else:
                await self._wait_or_refuse(result, deadline, presented)
            result = None

    async def _ask(self, presented: PresentedPayment, buyer: Waiter) -> SpendResult:
        """Spend a credit that this payment bought. Of a new one, as stock clients show, only a look is taken."""
        buyer.wish = self._wish(presented)
        if presented.accepted is not None and not await self.shared.buying.proofs.is_known(presented.key):
            return SpendResult(Spend.UNKNOWN)
        return await self._charged(self.shared.purchases.spend(presented.key, buyer.wish, clock_ms()))

    # Waits for a node, or for our hub's word of one (10 s), for its commit, and, until `deadline`, for purchases under
    # way that leave a credit to it (`payer_proofs`).

    async def _prove(self, presented: PresentedPayment, deadline: float) -> SpendResult | None:
        """Spend a credit that the payer holds by this payment, which is never settled (contract 10.3).

        None where it buys: where it is no proof, or nothing is held and no purchase under way leaves it a credit.
        """
        proofs, wanted = self.shared.buying.proofs, self.call.head.header.get(b"x-credits", b"")
        if wanted.strip().lower() == b"buy" or (self.opened.is_of_wallets and self.wallet != presented.key.payer):
            return None
        proof = await proofs.of(self.opened, presented)
        while proof is not None:
            if await proofs.is_held(proof):
                standing = await proofs.standing(proof)
                if not standing.is_unused:
                    return None  # whoever is asked to settle it says why not
                wish = self._wish(None, is_token=True)
                result = await self._charged(proofs.spend(proof, standing, wish))
                if result.outcome is not Spend.UNKNOWN:
                    self.is_proof = result.outcome is Spend.SPENT
                    return result
            elif not (await proofs.will_hold(proof.place, deadline) or await self._is_given_back(deadline)):
                return None
        return None

    # Waits for whoever decides, until `deadline`; of a payment that was claimed elsewhere our hub is asked which
    # transaction it is, for half a second; of one that failed after it was sold for, what became of it, until
    # `deadline`, and what is owed is given back first (`_is_given_back`). The reading thread reads a changed gate.

    async def _wait_or_refuse(
        self, result: SpendResult, deadline: float, presented: PresentedPayment | None = None
    ) -> None:
        """Handle every outcome of asking for a credit, but that one was taken, or that nothing is held.

        Returns when it is worth asking again. Raises: the refusal, ExhaustedError.
        """
        if result.outcome is Spend.STALE:
            await self._reload(deadline)
            return
        purchase, buying = result.found, self.shared.buying
        if result.outcome is Spend.SHOWN:
            raise credit_refusals.shown_before(purchase, holds=await buying.proofs.is_held_by(purchase))
        if result.outcome is Spend.WITHHELD:
            raise credit_refusals.withheld(purchase, self.opened.gate.credit_binding, presented)
        may_spend = self._may_spend(purchase, presented)
        if not (
            await buying.is_to_be_asked_again(result, deadline, may_spend=may_spend)
            or await self._is_given_back(deadline)
        ):
            raise ExhaustedError.of(purchase)

    async def _check_next_try(self, failed: Purchase | None) -> None:
        """A payment that a transaction made public is tried again, where the token counts, for its buyer alone.

        Whichever attempt's transaction that was: a later attempt may have sent nothing. `failed` is None where it was
        never claimed. Raises: CREDIT_TOKEN_REQUIRED.
        """
        if failed is None or self.opened.gate.credit_binding is not CreditBinding.TOKEN or self.wallet == failed.payer:
            return
        if self._named_by_token() == failed.id:
            return
        if shown_in := await self.shared.purchases.shown_in(failed):
            raise credit_refusals.next_try_withheld(failed.id, shown_in)

    async def _buy(
        self, presented: PresentedPayment, buyer: Waiter, deadline: float, failed: Purchase | None
    ) -> SpendResult | None:
        """Payer, enabled, network; then an attempt. None: it is to be asked again. Raises: the refusal."""
        if self.opened.is_of_wallets:
            request_facts.check_payer(self.wallet, presented.key.payer)
        if (refused := request_facts.not_sold(self.opened, presented.key.network)) is not None:
            if await self.shared.buying.decisions.is_under_way_again(failed, deadline):
                return None
            raise refused
        client = self.shared.limit.clients.of(self.call.peer, self.call.head.headers)
        tenant = self.opened.gate.owner_wallet or rate_key(client)
        attempt = PurchaseAttempt(self.shared.buying.decisions, self.opened, presented, buyer, tenant)
        return await self._taken(self.shared.buying.buy(attempt, deadline))

    @abstractmethod
    def _forward(self, opened: OpenGate, purchase: Purchase, proofs: Sequence[bytes] = PROOFS) -> None:
        """Forward the request, as `PaidCall` says."""


class PaidCall(Arriving):
    """One request at a PayGate, from its first step to its last."""

    # 6. Forward. Waits for the target, 600 s from the last byte of the request (before it for as long, in all, where it
    # does not take what comes: `edge.target.relay`), and before that for a body that is signed: a mebibyte of it is
    # held, for a moment twice, and hashed in the loop. A body that is all there is sent at once (reading pauses behind
    # 64 KiB; one look at the socket may bring more), others flow as fast as the target takes them; of one that it does
    # not take up to 32 MiB are held, 64 MiB of all, to see whether its caller has left (`edge.server.client_liveness`).
    # The target's name is looked up for 5 s at most, a connection made for 10, both anew where a kept one had closed. A
    # long answer waits 600 s more for the disk.

    def _forward(self, opened: OpenGate, purchase: Purchase, proofs: Sequence[bytes] = PROOFS) -> None:
        """`proofs`: the headers of which the first one that is there got the credit."""
        self.enter(Stage.FORWARDING)
        shared, call = self.shared, self.call
        self.opened = opened
        self.purchase = purchase
        self.receipts = self._receipt(purchase.remaining)
        if not self.is_proof:
            shared.limit.paid(call, PROOFS_OF_PAYERS if opened.is_of_wallets else proofs)
        if self.has_bought or self.is_proof:
            shared.limit.bought(call)
        if opened.gate.file is not None:
            self.in_task(self.hand_over(opened.gate.file))
            return
        length, body = call.head.content_length, request_facts.body_of(call, shared.body_limit_bytes, self._break_off)
        if not opened.wire.secrets:
            self._send(body, length, b"")
        elif isinstance(body, bytes):
            self._sign(body, body)
        else:
            self.relay = self.ahead = ahead = BodyAhead(
                body, self, self._sign, shared.forwarder, shared.ahead, opened.use.tenant
            )
            ahead.start(length)

    def _sign(self, signed: bytes | None, body: bytes | BodySource) -> None:
        """Sign where the gate signs: `signed` is the body as far as the signature covers it, None for one too long."""
        if self.stage is Stage.OVER:
            return
        self.relay = None  # the body is read, its reader done
        lines = heads.signature_of(self.call, self.opened, self.asked, self.purchase, signed, self.shared.random_bytes)
        self._send(body, len(body) if isinstance(body, bytes) else self.call.head.content_length, lines)

    def _send(self, body: bytes | BodySource, length: int | None, signature: bytes) -> None:
        call, opened = self.call, self.opened
        assert opened.target is not None  # noqa: S101 - a file was handed over
        client, forwarder = self.shared.limit.clients.of(call.peer, call.head.headers), self.shared.forwarder
        head = heads.target_head(call, opened, self.asked, self.purchase, client, length, signature=signature)
        request = RelayRequest(opened.use, opened.target, call.method, head, body, length)
        if opened.gate.stream:
            streamed = StreamedParts(self)
            self.relay = relay = forwarder.stream(request, streamed)
            streamed.follow(relay)
        else:
            self.relay = forwarder.relay(request, self)
        self.relay.start()
