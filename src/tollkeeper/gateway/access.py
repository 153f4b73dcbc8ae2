"""The paid request, top to bottom, in the order of contract 4.2 (specification 1.2, 1.3, 3).

    1. slug (404); a CORS preflight is answered here
    2. method (405) -> rate limit (429) -> size (413) -> can it be forwarded (400, 404) -> bearer (401)
    3. proof of payment (402; 404 where the gate sells nothing at present) -> decode, signature, a wallet's payer (403)
    4. spend a held credit; by its token or as its payer, too
    5. buy: a failed payment's next try (403) -> a wallet's payer (401, 403) -> enabled (404), network ->
       recipient, price, time -> verify -> claim -> settle -> grant and spend (from recipient on: `buying`)
    6. forward, and what is answered: `answering`, where each way stands in which a request ends

A process that stops begins no call and no purchase (one under way goes on: `Buying.aclose`), and what a commit has
taken by then is given back: 503. Before the first step stands `entrance`: a head that got a 402 at this very gate gets
it again without a call. One that spent a credit here goes a straight way (`again`, by what `held` says) and comes here
where it leaves that. Where a rule of contract 4 is, and by whom it is carried out, says docs/architecture.md 5.

Spending precedes buying, so that bought credits outlive every change of price, address and validity. So under `wallet`
nobody is told to log in who only shows again what he paid: 401 is for one who would buy, shows a token only, or nothing
that could be read. A payment beside a token is read once the token holds nothing. A credit is spent before the first
byte goes to the target and is durable by then.

`PaidCall` is one request: its steps stand in the order in which a request meets them, and what several steps ask for
behind the first that does. Its state is the table in `steps`: `Stage` says what a request waits for, `NEXT` what may
follow, `Steps` what is known of it. It goes by callbacks: a 402 is answered within the parser's own call, and a call on
a held credit waits twice, for the ledger's commit and for the target. Whatever waits for more is a task.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.api import bearer_token, clock_ms
from tollkeeper.core.errors import ApiError, Code, ErrorType, payment_error
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.paygate_fields import CreditBinding
from tollkeeper.core.purchases import Spend, purchase_of_token
from tollkeeper.core.statistics import CLIENT_GONE_STATUS
from tollkeeper.edge.relay import RelayRequest
from tollkeeper.gateway import calls, heads
from tollkeeper.gateway.answering import Answering
from tollkeeper.gateway.buying import Buyer
from tollkeeper.gateway.following import key_of
from tollkeeper.gateway.held import held_again
from tollkeeper.gateway.limiting import PROOFS, PROOFS_OF_PAYERS
from tollkeeper.gateway.ownership import login_required
from tollkeeper.gateway.signing import BodyAhead
from tollkeeper.gateway.steps import ExhaustedError, Stage
from tollkeeper.gateway.streaming import StreamedParts
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from tollkeeper.edge.call import BodySource, InboundCall
    from tollkeeper.gateway.buying import Presented
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.shared import Shared
    from tollkeeper.storage.purchase_rows import Purchase

_NO_WISH: Final = SpendRequest(0, 0, None, "")  # until it is known what is shown


class PaidCall(Answering):
    """One request at a PayGate."""

    def __init__(self, shared: Shared, call: InboundCall) -> None:
        self.shared = shared
        self.call = call
        self.asked = call.head.notes or calls.asked_by(call)

    # 1. Slug. In memory; a task reads a gate that is not, by the reading thread, and makes its 402s. Here and below,
    # where several workers serve, what is read is asked of the ledger's process.

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
        self._check(await self._or_deleted(slug, self.shared.gates.by_slug(slug), is_claimed=self.asked.has_proof))

    async def _or_deleted(self, slug: str, looked_up: Awaitable[OpenGate], *, is_claimed: bool) -> OpenGate:
        """A deleted gate is there for a payment that was, or may have been, claimed before (contract 2).

        Raises: as the look-up, NOT_FOUND among it.
        """
        try:
            return await looked_up
        except ApiError as error:
            if error.code is not Code.NOT_FOUND or not is_claimed:
                raise
            return await self.shared.gates.deleted(slug)

    # 2. Method, rate limit, size, can it be forwarded (its headers for the target are made here and kept with the
    # head), bearer. A task asks for the session where the gate wants one: by the reading thread, and where a guest
    # comes for the first time a commit of the writing one; or over HTTP where another hub issued it (`auth.trusted`:
    # 5 s a question, three at most). An EdDSA signature is checked in the loop.

    def _check(self, opened: OpenGate) -> None:
        call, gate = self.call, opened.gate
        self.opened = opened
        if calls.is_preflight(call):
            self.enter(Stage.OVER)
            call.answer(204, heads.preflight_lines(gate, call), length_bytes=None)
            return
        calls.check_method(gate, call)
        self.shared.limit.check(call)
        calls.check_size(call, self.shared.body_limit_bytes)
        calls.check_forwardable(call, self.asked, opened)
        if self._is_login_wanted():
            self.enter(Stage.LOGIN)
            self.in_task(self._log_in_first())
        else:
            self._ask_for_proof()

    def _is_login_wanted(self) -> bool:
        """Whether the gate asks who calls, or may serve a caller by who it is."""
        opened = self.opened
        return opened.gate.require_auth or (not opened.takes_header and b"authorization" in self.call.head.header)

    async def _log_in_first(self) -> None:
        await self._log_in()
        self._ask_for_proof()

    async def _log_in(self) -> None:
        """Learns the bearer's wallet. Raises: AUTH_REQUIRED and what else is wrong with a bearer."""
        bearer = self.call.head.header.get(b"authorization", b"").decode("latin-1")
        session = await self.shared.auth.authenticate(bearer_token({"authorization": bearer}))
        self.wallet = session.wallet

    # 3. Proof of payment; decode and signature. Computing only: a payment that was not seen before holds the loop for
    # some 100 microseconds, half of them its signature (performance 14 says why no thread recovers it). Headers that
    # were checked are kept (`proofs`, bounded), and so is what the next call with this head needs (`_keep_held`).

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
        presented = self.shared.proofs.read(self.call.head.header[b"x-payment"])
        self._spend(presented, buyer)

    def _ask_wallet(self) -> None:
        """Under `creditBinding: wallet` the payer's bearer is the proof, and the payment only buys (contract 4.3)."""
        header = self.call.head.header
        if b"x-payment" in header:
            self.buyer = Buyer(_NO_WISH, on_left=self.left)
            presented = self._read_of_wallet(header[b"x-payment"])
            calls.check_payer(self.wallet or presented.key.payer, presented.key.payer)  # without a bearer: see `_buy`
            self._spend(presented, self.buyer)
        elif self.wallet is not None:
            self.enter(Stage.BUYING)
            self.in_task(self._take_of_wallet(self.wallet))
        elif self.asked.has_proof:
            raise login_required()
        else:
            self._challenge()

    def _read_of_wallet(self, header: bytes) -> Presented:
        """One that cannot be read is asked for its bearer first. Raises: AUTH_REQUIRED, and what is wrong with it."""
        try:
            return self.shared.proofs.read(header)
        except ApiError as unreadable:
            if self.wallet is None and unreadable.type is ErrorType.PAYMENT:
                raise calls.payers_bearer_required() from None
            raise

    # 4. Spend a held credit. Waits for the ledger's commit, together with every other call that waits for it. Where one
    # process has the database, that commit blocks the loop until the disk has it, unless the writing thread is at work
    # (`storage.sqlite.SqliteDatabase.post`): then the loop lends it the interpreter, up to 2 ms at a time
    # (`storage.lending`). With several workers it is the ledger's process that waits for the disk.

    def _spend(self, presented: Presented, buyer: Buyer) -> None:
        self.enter(Stage.SPENDING)
        buyer.wish = self._wish(presented)

        def done(result: SpendResult | ApiError) -> None:
            self.guard(self._spent, result, presented, buyer)

        self.shared.purchases.spend_soon(presented.key, buyer.wish, clock_ms(), done)

    def _spent(self, result: SpendResult | ApiError, presented: Presented, buyer: Buyer) -> None:
        is_taken = not isinstance(result, ApiError) and result.outcome is Spend.SPENT
        if self.stage is Stage.OVER:
            # Committed means charged, though the client left meanwhile.
            if is_taken:
                self.end(CLIENT_GONE_STATUS)
        elif isinstance(result, ApiError):
            raise result
        elif self.shared.is_stopping:
            self.is_charged, self.is_cut = is_taken, True
            self.cut_short()
        elif result.outcome is Spend.SPENT:
            purchase = calls.purchase_of(result)
            self._forward(self.opened, purchase)
            self._keep_held(presented, purchase)
        else:
            self.enter(Stage.BUYING)
            self.in_task(self._buy_after(result, presented, buyer))

    def _wish(self, presented: Presented | None) -> SpendRequest:
        """What is asked of the ledger; `presented` None where another proof than a payment was shown and checked.

        Where the gate binds credits otherwise (`creditBinding`), a payment's header matches no purchase: it counts for
        the request that buys with it (`Buyer.claimed`) and for no other.
        """
        opened, shown = self.opened, None
        if presented is not None:
            shown = presented.header_hash if opened.takes_header else b""
        return SpendRequest(opened.gate.id, opened.gate.version, shown, self.call.request_id)

    def _keep_held(self, presented: Presented, purchase: Purchase) -> None:
        """Calls with the same bytes go the straight way from now on, if they can."""
        call, asked = self.call, self.asked
        asked.held = held_again(self.shared, call, asked, self.opened, presented, purchase)
        call.head.is_again = asked.held is not None

    # The same by its token, or as the payer that its bearer shows (contract 4.3). In a task, by a commit of claims and
    # grants: these, too, are the loop's where the disk is quick, else the thread's (`SqliteDatabase.run_short`). Where
    # the ledger's process went away it is waited for, 10 s at most.

    async def _take_credit(self, buyer: Buyer) -> None:
        """Spends by the credit token; where it holds none by the payment beside it, which may also buy."""
        deadline = self._deadline()
        header = self.call.head.header
        try:
            opened, purchase = await self._spend_by_token(header[b"x-credit-token"].decode("latin-1"), deadline)
        except (ApiError, ExhaustedError) as refused:
            is_of_token = not isinstance(refused, ApiError) or refused.status in {402, 403}
            if not is_of_token or b"x-payment" not in header:
                raise
            presented = self.shared.proofs.read(header[b"x-payment"])
            opened, purchase = await self._spend_or_buy(presented, buyer, deadline, None)
            self._forward(opened, purchase, PROOFS_OF_PAYERS)
        else:
            self._forward(opened, purchase)

    async def _spend_by_token(self, token: str, deadline: float) -> tuple[OpenGate, Purchase]:
        """Spends a credit that the token holds.

        Raises: CREDIT_TOKEN_REQUIRED, ExhaustedError, SETTLEMENT_PENDING; what the gate refuses by then.
        """
        shared = self.shared
        purchase_id = purchase_of_token(shared.token_keys, token)
        while True:
            if self.opened.is_of_wallets:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, calls.WITHHELD[CreditBinding.WALLET])
            if purchase_id is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            result = await self._charged(shared.purchases.spend_token(purchase_id, self._wish(None), clock_ms()))
            if result.outcome is Spend.SPENT:
                return self.opened, calls.purchase_of(result)
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED, Spend.FOREIGN}:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token holds nothing at this PayGate")
            else:
                await self._settle_outcome(result, deadline)

    async def _take_of_wallet(self, wallet: str) -> None:
        taken = await self._spend_of_wallet(wallet, self._deadline())
        if taken is None:
            self._challenge()
        else:
            self._forward(*taken)

    async def _spend_of_wallet(self, wallet: str, deadline: float) -> tuple[OpenGate, Purchase] | None:
        """Spends of the oldest purchase that the wallet has here; None where it has none, or the gate asks for more."""
        while self.opened.is_of_wallets:
            taking = self.shared.purchases.spend_of_payer(wallet, self._wish(None), clock_ms())
            result = await self._charged(taking)
            if result.outcome is Spend.SPENT:
                return self.opened, calls.purchase_of(result)
            if result.outcome is Spend.UNKNOWN:
                return None
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            else:
                await self._settle_outcome(result, deadline)
        return None

    # Where asking for a credit said neither that one was taken nor that nothing is held: waits for whoever decides, or
    # asks again. For steps 4 and 5; the gate as it is by now is read by the reading thread.

    def _deadline(self) -> float:
        """Until when this call may wait for somebody's decision, in the loop's time; counted from its arrival.

        Whoever is refused for it is told so after half a second more, in which the hub is asked for the transaction.
        """
        waited_seconds = (time.perf_counter_ns() - self.call.started_ns) / 1e9
        return asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS - waited_seconds

    async def _settle_outcome(self, result: SpendResult, deadline: float, presented: Presented | None = None) -> None:
        """What the other outcomes of asking for a credit mean. Returns when it is worth asking again."""
        purchase = calls.purchase_of(result)
        if result.outcome is Spend.IN_FLIGHT:
            # Nothing is sent for whom its credits would be withheld from: what never was fails, and buys anew (0067).
            is_proof = presented is None or self.opened.gate.credit_binding is not CreditBinding.TOKEN
            is_own = self.buyer is not None and self.buyer.claimed == purchase.id
            may_spend = is_proof or is_own or self.wallet == purchase.payer
            await self.shared.buying.waiting.until_decided(purchase, deadline, may_spend=may_spend)
        elif result.outcome is Spend.EXHAUSTED:
            raise ExhaustedError.of(purchase)
        elif result.outcome is Spend.WITHHELD:
            is_repeatable = presented is not None and presented.tender.is_repeatable
            raise calls.withheld(purchase, self.opened.gate.credit_binding, is_repeatable=is_repeatable)
        elif result.outcome is Spend.PARKED:
            raise self.shared.buying.waiting.pending(key_of(purchase), purchase)
        else:
            raise calls.spent_elsewhere(purchase)

    async def _reload(self, deadline: float) -> None:
        """The gate changed: as it is now. Raises: what it refuses by now; UNAVAILABLE where `deadline` has passed."""
        if asyncio.get_running_loop().time() >= deadline:
            message = "the PayGate changes all the time; nothing more was charged, send the same payment again"
            raise ApiError(Code.UNAVAILABLE, message)
        slug, is_claimed = self.opened.gate.slug, self.buyer is not None and self.buyer.claimed is not None
        reloaded = self.shared.gates.reload(slug)
        self.opened = opened = await self._or_deleted(slug, reloaded, is_claimed=is_claimed)
        # What it was let through by may hold no more, however long it has waited meanwhile (contract 3.3).
        calls.check_method(opened.gate, self.call)
        calls.check_forwardable(self.call, self.asked, opened)
        if self.wallet is None and self._is_login_wanted():
            await self._log_in()

    # 5. Buy, or wait for whoever does. In a task, 30 s from the arrival at most, then 503; besides, as above, for
    # commits (10 s where the ledger's process went away), a login, gates and transactions that the reading thread looks
    # up, and, once its credit is being taken, for that to be done. What follows `_buy` is the payment's and not this
    # request's, and several requests with one payment wait for one attempt (`buying.Buying._attempt`): `_judge`
    # (recipient, price, time, verify) -> `Purchases.claim` -> `_settle` -> `conclude` (grant and spend), where it says
    # what each part waits for.

    async def _buy_after(self, result: SpendResult, presented: Presented, buyer: Buyer) -> None:
        opened, purchase = await self._spend_or_buy(presented, buyer, self._deadline(), result)
        self._forward(opened, purchase)

    async def _spend_or_buy(
        self, presented: Presented, buyer: Buyer, deadline: float, result: SpendResult | None
    ) -> tuple[OpenGate, Purchase]:
        """Spends a held credit of this payment or buys with it; `result` is what asking said already.

        Returns the gate as it is by then. Raises: the refusal, ExhaustedError.
        """
        shared = self.shared
        while True:
            if result is None:
                buyer.wish = self._wish(presented)
                result = await self._charged(shared.purchases.spend(presented.key, buyer.wish, clock_ms()))
            if result.outcome is Spend.SPENT:
                return self.opened, calls.purchase_of(result)
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                await self._check_next_try(result.purchase)
                bought = await self._buy(presented, buyer, deadline)
                if bought is not None:
                    # So it is forwarded whatever its gate asks for by now.
                    self.is_charged, self.purchase = True, calls.purchase_of(bought)
                    return await shared.gates.current(self.opened), self.purchase
                await self._reload(deadline)
            elif self._is_buyer_without_proof(presented, result):
                if not self.opened.is_of_wallets:
                    result = await self._charged(self._spend_as_buyer(result))
                    continue
                if (taken := await self._spend_as_owner(calls.purchase_of(result), deadline)) is not None:
                    return taken
            else:
                await self._settle_outcome(result, deadline, presented)
            result = None

    def _is_buyer_without_proof(self, presented: Presented, result: SpendResult) -> bool:
        """The payment shown does not count at this gate: may the payer, whose bearer is there, spend all the same?"""
        opened = self.opened
        if opened.takes_header or self.wallet != presented.key.payer:
            return False
        return result.outcome is Spend.WITHHELD or (opened.is_of_wallets and result.outcome is Spend.EXHAUSTED)

    def _spend_as_buyer(self, withheld: SpendResult) -> Coroutine[Any, Any, SpendResult]:
        return self.shared.purchases.spend_token(calls.purchase_of(withheld).id, self._wish(None), clock_ms())

    async def _spend_as_owner(self, shown: Purchase, deadline: float) -> tuple[OpenGate, Purchase] | None:
        """A credit of the payer, who shows what he bought here before; None where the gate asks for more by now."""
        taken = await self._spend_of_wallet(shown.payer, deadline)
        if taken is None and self.opened.is_of_wallets:
            raise ExhaustedError.of(shown)
        return taken

    async def _check_next_try(self, failed: Purchase | None) -> None:
        """A payment that a transaction made public is tried again, where the token counts, for its buyer alone.

        Whichever attempt's it was: a later one may have sent nothing. `failed` is None of a payment that was never
        claimed. Raises: CREDIT_TOKEN_REQUIRED.
        """
        if failed is None or self.opened.gate.credit_binding is not CreditBinding.TOKEN or self.wallet == failed.payer:
            return
        token = self.call.head.header.get(b"x-credit-token", b"").decode("latin-1")
        if purchase_of_token(self.shared.token_keys, token) == failed.id:
            return
        if shown_in := await self.shared.purchases.shown_in(failed):
            raise calls.next_try_withheld(failed.id, shown_in)

    async def _buy(self, presented: Presented, buyer: Buyer, deadline: float) -> SpendResult | None:
        """Payer, enabled, network, for which nobody is asked, then `Buying.buy`. Raises: the refusal."""
        gate = self.opened.gate
        if self.opened.is_of_wallets:
            calls.check_payer(self.wallet, presented.key.payer)
        if not gate.is_enabled:
            raise ApiError(Code.NOT_FOUND, "this PayGate sells nothing at present")
        if presented.key.network not in self.opened.offers:
            raise payment_error(
                Code.INVALID_NETWORK,
                "the payment is for another network",
                details={
                    "reason": "invalid_network",
                    "expected": ", ".join(self.opened.offers),
                    "found": presented.key.network,
                },
            )
        return await self._taken(self.shared.buying.buy(self.opened, presented, buyer, deadline))

    # 6. Forward. Waits for the target (600 s until all is sent, 600 s from then on: `edge.relay`), and before that for
    # a body that is signed (600 s, too): a mebibyte of it is held, for a moment twice, and hashed in the loop. A body
    # that is all there is sent at once (reading pauses behind 64 KiB; one look at the socket may bring more), others
    # flow as fast as the target takes them; of one that it does not take up to 32 MiB are held, 64 MiB of all, to see
    # whether its caller has left (`edge.presence`). A long answer waits 600 s more for the disk.

    def _forward(self, opened: OpenGate, purchase: Purchase, proofs: Sequence[bytes] = PROOFS) -> None:
        """`proofs`: the headers of which the first one that is there got the credit."""
        self.enter(Stage.FORWARDING)
        shared, call = self.shared, self.call
        self.opened = opened
        self.purchase = purchase
        self.receipts = self._receipt(purchase.remaining)
        shared.limit.paid(call, PROOFS_OF_PAYERS if opened.is_of_wallets else proofs)
        if self.has_bought:
            shared.limit.bought(call)
        if opened.gate.file is not None:
            self.hand_over(opened.gate.file)
            return
        length, body = call.head.content_length, self._body()
        if not opened.wire.secrets:
            self._send(body, length, b"")
        elif isinstance(body, bytes):
            self._sign(body, body)
        else:
            self.relay = ahead = BodyAhead(body, self, self._sign, shared.forwarder)
            ahead.start(length)

    def _sign(self, signed: bytes | None, body: bytes | BodySource) -> None:
        """Where the gate signs: `signed` is the body as far as the signature covers it, None for one too long."""
        if self.stage is Stage.OVER:
            return
        self.relay = None  # what read the body tells nobody any more
        lines = heads.signature_of(self.call, self.opened, self.asked, self.purchase, signed, self.shared.random_bytes)
        self._send(body, len(body) if isinstance(body, bytes) else self.call.head.content_length, lines)

    def _send(self, body: bytes | BodySource, length: int | None, signature: bytes) -> None:
        call, opened = self.call, self.opened
        assert opened.target is not None  # noqa: S101 - a file was handed over
        head = heads.target_head(call, opened, self.asked, self.purchase, self._client(), length, signature=signature)
        request, forwarder = RelayRequest(opened.target, call.method, head, body, length), self.shared.forwarder
        if opened.gate.stream:
            streamed = StreamedParts(self)
            self.relay = streamed.relay = forwarder.stream(request, streamed)
        else:
            self.relay = forwarder.relay(request, self)
        self.relay.start()

    def _body(self) -> bytes | BodySource:
        """The request's: at once where all of it is there, else as it comes and as far as it may."""
        whole = None if self.call.head.content_length is None else self.call.whole_body()
        return calls.BoundedBody(self.call, self.shared.body_limit_bytes, self._break_off) if whole is None else whole

    def _client(self) -> str:
        return self.shared.limit.clients.of(self.call.peer, self.call.head.headers)

    def _break_off(self, error: Exception) -> None:
        """No more of the request's body goes on: told by the relay, which knows whether the answer has begun."""
        if self.relay is None:
            self.on_refusal(error)
        else:
            self.relay.refuse(error)
