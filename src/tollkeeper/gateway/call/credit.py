"""The credit of one paid call: how it is acquired, and what becomes of it (contract 4.3, 4.5, 10.3).

    acquire    spend -> nothing held: prove, else buy -> withheld: as the payer -> else wait for a decision, or refuse
    leave      by `FATES`: charged, charged though the client is gone, given back, or left to the ledger

Every rule of contract 4.5 about a credit stands here; those that need no stack are `core.purchases`. How many
credits are taken, and of which purchase, is `storage.ledger.spends`.

- Committed is charged (4.3): a credit is taken before the first byte goes to the target, and durable by then.
- What takes a credit or gives one back is waited for in `Credit._take` and `Credit._give_back` alone, and no cut ends
  that waiting (`driver`): what a commit has taken is known here, whatever became of the call meanwhile.
- Where the database went away without a word, nobody knows whether a credit was taken: the call is refused, and the
  ledger gives back what it took once the database is there again (`Ledger.refused`).
- Spending precedes buying (4.2), so bought credits outlive every change of price, address and validity.
- From a stop on nothing is taken: what a commit has taken by then is given back, with a 503.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tollkeeper.api import clock_ms
from tollkeeper.core.api.errors import ApiError, Code, ErrorType, login_required
from tollkeeper.core.http.client_addresses import rate_key
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.paygates.statistics import CLIENT_GONE_STATUS
from tollkeeper.core.purchases import (
    PurchaseState,
    Spend,
    header_counts,
    is_given_back,
    next_try_is_buyers,
    payer_may_spend,
)
from tollkeeper.gateway.call import credit_refusals, request_facts
from tollkeeper.gateway.call.driver import Cut, KeptReply
from tollkeeper.gateway.limiting import PROOFS, PROOFS_OF_PAYERS
from tollkeeper.gateway.purchase.service import PurchaseAttempt, Waiter
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.ledger.spends import HeldSpend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from tollkeeper.core.paygates.fields import OnFailure
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.gateway.call.state import PaidCall
    from tollkeeper.gateway.purchase.payer_proofs import PayerProof
    from tollkeeper.storage.ledger.purchase_rows import Purchase

T = TypeVar("T")
_UNPAID_MAX: Final = 20  # as many as one payer may owe on trust, unless the settings say otherwise


class CreditState(Enum):
    """States of a call's credit."""

    NONE = "nobody asked for one, or none was given"
    UNKNOWN = "it was asked for, and the database did not say"
    TAKEN = "committed"
    CLOSED = "its fate is decided, and the call is counted"

    __hash__ = object.__hash__  # an enum hashes its name, in Python code; its members are what they are


class Ending(Enum):
    """Ways in which a paid call ends."""

    SERVED = "the target's answer, or the link to a file"
    RETURNED = "503 of ours before an answer has begun, or a 502 where the owner restores (`is_given_back`)"
    FAILED = "502, what is wrong with the rest of the request, or a fault of ours"
    BROKEN_OFF = "an answer that has begun, and is left unfinished"
    LEFT = "the client left"
    STOPPED = "the process stops before an answer has begun"

    __hash__ = object.__hash__


class Fate(Enum):
    """Fates of a credit, each with what the books have of the call."""

    NOTHING = "no call, no entry"
    CHARGED = "the call, DONE with the status of its answer"
    CHARGED_THOUGH_GONE = "the call, DONE with 499"
    GIVEN_BACK = "the call, RESTORED; the credit is there again, unless its purchase was given back too often"
    LEFT_TO_LEDGER = "no call; or one, RESTORED once the database is there again"


# What becomes of the credit of a call in this state that ends this way.
FATES: Final[dict[CreditState, dict[Ending, Fate]]] = {
    CreditState.NONE: dict.fromkeys(Ending, Fate.NOTHING),
    CreditState.UNKNOWN: dict.fromkeys(Ending, Fate.LEFT_TO_LEDGER),  # 4.5: nothing charged that is not honoured
    CreditState.TAKEN: {
        Ending.SERVED: Fate.CHARGED,  # 4.3
        Ending.RETURNED: Fate.GIVEN_BACK,  # 4.5: 503; a 502 by `onFailure: restore`
        Ending.FAILED: Fate.CHARGED,  # 4.5: a 502 consumes the credit
        Ending.BROKEN_OFF: Fate.CHARGED,  # 4.7: the head has left already
        Ending.LEFT: Fate.CHARGED_THOUGH_GONE,  # 4.3: committed is dispatched
        Ending.STOPPED: Fate.GIVEN_BACK,  # 4.5: 503
    },
    CreditState.CLOSED: dict.fromkeys(Ending, Fate.NOTHING),
}


def ending_of(error: ApiError, on_failure: OnFailure) -> Ending:
    """Return how a paid call ends that is answered with this refusal."""
    return Ending.RETURNED if is_given_back(error, on_failure) else Ending.FAILED


class CreditOutcome(NamedTuple):
    """Words for a caller about the credit; `left`: how many remain, where that is new."""

    told: str
    left: int | None = None


class Credit:
    """The credit of one call."""

    __slots__ = ("_call", "proofs", "state")

    def __init__(self, call: PaidCall) -> None:
        self._call = call
        self.state = CreditState.NONE
        self.proofs = PROOFS  # the headers of which the first one that is there got the credit

    # Acquire: charged once it returns. A payment that was not seen before holds the loop for some 100 microseconds, a
    # third to a half of them its signature (performance 4 says why no thread recovers it); headers that a key signed
    # are kept (`payment_header`, bounded), a contract wallet's is read each time.

    def acquire(self) -> Coroutine[Any, Any, Purchase | None]:
        """Spend a credit by what the call shows, or buy; None where it shows nothing that could hold one.

        The gate is afterwards the one to forward by. Raises: the refusal, ExhaustedError.
        """
        call = self._call
        if call.gate.is_of_wallets:
            return self._acquire_of_wallet()
        call.buyer = Waiter()
        has_token = bool(call.http.head.header.get(b"x-credit-token"))
        return self._by_token_or_payment() if has_token else self._by_payment(call.present())

    async def _by_token_or_payment(self) -> Purchase:
        """Spend a credit of the token; where it holds nothing, and a payment stands beside it, as without a token."""
        call = self._call
        try:
            return await self._by_token()
        except (ApiError, credit_refusals.ExhaustedError) as refused:
            holds_nothing = not isinstance(refused, ApiError) or refused.status == 403
            if not (holds_nothing and request_facts.shows_payment(call.http)):
                raise
        self.proofs = PROOFS_OF_PAYERS
        return await self._by_payment(call.present())

    async def _acquire_of_wallet(self) -> Purchase | None:
        """Acquire where the payer's bearer is the proof, and the payment only buys (4.3, `creditBinding: wallet`)."""
        call, self.proofs = self._call, PROOFS_OF_PAYERS
        if request_facts.shows_payment(call.http):
            return await self._by_payment(self._payment_of_wallet())
        if call.wallet is not None:
            if (purchase := await self._by_bearer(call.wallet)) is None:
                await call.driver.in_task(self._check_token(call.wallet))
            return purchase
        if request_facts.shows_proof(call.http.head):
            raise login_required()
        return None

    def _payment_of_wallet(self) -> PresentedPayment:
        """Read a payment that only its payer may buy with. Raises: the refusal.

        Without a wallet that is logged in `_buy` asks for one: nobody is told to log in who only shows again what he
        paid. 401 is for one who would buy, shows a token only, or nothing that could be read.
        """
        call = self._call
        call.buyer = Waiter()
        try:
            presented = call.present()
        except ApiError as unreadable:
            if call.wallet is None and unreadable.type is ErrorType.PAYMENT:
                raise request_facts.payers_bearer_required() from None
            raise
        request_facts.check_payer(call.wallet or presented.key.payer, presented.key.payer)
        return presented

    async def _by_payment(self, presented: PresentedPayment) -> Purchase:
        """Spend a held credit of this payment, or buy with it."""
        call = self._call
        if call.gate.gate.file is not None:
            await self._require_file()
        result = await self._spend(presented)
        while result.outcome is not Spend.SPENT:
            if result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                result = await self._prove_or_buy(presented, result)
            elif payer_may_spend(
                call.gate.gate.credit_binding, result.outcome, is_payer=call.wallet == presented.key.payer
            ):
                if call.gate.is_of_wallets:
                    if (purchase := await self._by_bearer(result.found.payer, beside=result.found)) is not None:
                        return purchase
                    result = await self._spend(presented)
                else:
                    result = await self._spend_of(result.found.id, is_token=False)
            else:
                await self._wait_or_refuse(result, presented)
                result = await self._spend(presented)
        return result.found

    async def _by_token(self) -> Purchase:
        """Spend a credit that the credit token holds. Raises: CREDIT_TOKEN_REQUIRED and what refuses it by then."""
        call, purchase_id = self._call, self._call.named_by_token
        if purchase_id is not None:
            await self._require_file()
        while True:
            if call.gate.is_of_wallets:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, credit_refusals.WITHHELD[CreditBinding.WALLET])
            if purchase_id is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            result = await self._spend_of(purchase_id, is_token=True)
            if result.outcome is Spend.SPENT:
                return result.found
            if result.outcome in {Spend.UNKNOWN, Spend.FAILED, Spend.FOREIGN}:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token holds nothing at this PayGate")
            await self._wait_or_refuse(result, None)

    async def _by_bearer(self, wallet: str, beside: Purchase | None = None) -> Purchase | None:
        """Spend of the oldest purchase that the wallet has here; None where it has none, or the gate asks for more.

        `beside`: the purchase of a payment that is shown, whose credits are used up where the wallet has none.
        """
        call, purchases = self._call, self._call.context.purchases
        await self._require_file()
        while call.gate.is_of_wallets:
            taking = purchases.spend_of_payer(wallet, self._request(None), clock_ms())
            result = await self._take(call.driver.in_kept_task(taking))
            if result.outcome is Spend.SPENT:
                return result.found
            if result.outcome is not Spend.UNKNOWN:
                await self._wait_or_refuse(result, None)
            elif not await call.driver.in_task(self._may_hold_again(wallet)):
                if beside is None:
                    return None
                raise credit_refusals.ExhaustedError.of(beside)
        return None

    # Ask the ledger. A call on a held credit waits for the ledger's commit, together with every other call that waits
    # for it, and has no task. That commit blocks the loop until the disk has it, unless the writing thread is at work
    # or has to be (`storage.sqlite.engine.SqliteDatabase.post`): then the loop lends it the interpreter, up to 2 ms at
    # a time (`storage.sqlite.batches`).

    async def _take(self, asked: Awaitable[SpendResult | ApiError]) -> SpendResult:
        """Learn whether a credit was taken; only then whether the call was cut meanwhile. Raises: CutShortError.

        What nobody knows of it is given back as soon as the database can say so.
        """
        call, context = self._call, self._call.context
        try:
            result = await asked
        except StorageError as error:
            context.purchases.ledger.refused(call.http.request_id)
            result = error
        if isinstance(result, ApiError):  # as an answer it is the ledger's own, which knows what it may have taken
            if isinstance(result, StorageError):
                self.state = CreditState.UNKNOWN
                call.driver.check()
            raise result
        if result.outcome is Spend.SPENT:
            self.state, call.purchase = CreditState.TAKEN, result.purchase  # 4.3: charged from here on
        if context.is_stopping:
            call.driver.cut_short(Cut.STOPPED)  # 4.5: a 503, and it is given back
        if call.driver.cut is not None:
            call.driver.check()
        return result

    def _spend(self, presented: PresentedPayment) -> Coroutine[Any, Any, SpendResult]:
        """Spend a credit that this payment bought. Of a new one, as stock clients show, only a look is taken."""
        call = self._call
        assert call.buyer is not None  # noqa: S101 - it shows a payment
        call.buyer.spend_request = request = self._request(presented)
        return self._look_and_spend(presented, request) if request.is_once else self._post(presented, request)

    async def _look_and_spend(self, presented: PresentedPayment, request: SpendRequest) -> SpendResult:
        if await self._call.driver.in_task(self._call.context.buying.proofs.is_known(presented.key)):
            return await self._post(presented, request)
        return SpendResult(Spend.UNKNOWN)

    def _post(self, presented: PresentedPayment, request: SpendRequest) -> Coroutine[Any, Any, SpendResult]:
        reply: KeptReply[SpendResult | ApiError] = KeptReply()
        spend = HeldSpend(presented.offered.key, None, request)
        self._call.context.purchases.ledger.spend(spend, clock_ms(), reply.tell)
        return self._take(reply)

    async def _spend_of(self, purchase_id: str, *, is_token: bool) -> SpendResult:
        """Spend a credit of this purchase, whose token is shown, or whose payer's bearer."""
        request = self._request(None, is_token=is_token)
        taking = self._call.context.purchases.spend_token(purchase_id, request, clock_ms())
        return await self._take(self._call.driver.in_kept_task(taking))

    def _request(self, presented: PresentedPayment | None, *, is_token: bool = False) -> SpendRequest:
        """Make the ledger's request; `presented` is None where another proof than a payment was checked.

        Where the gate binds credits otherwise (`creditBinding`), a payment's header matches no purchase: it counts for
        the request that buys with it (`Waiter.claimed`) and for no other.
        """
        gate, shown, is_once = self._call.gate, None, False
        if presented is not None:
            shown = presented.header_hash if gate.takes_header else b""
            is_once = presented.payment.accepted is not None
        return SpendRequest(gate.gate.id, gate.gate.version, shown, self._call.http.request_id, is_token, is_once)

    async def _require_file(self) -> None:
        """Ask the store of a file PayGate whether it can give the file, before a credit is taken for it: 5 s.

        A commit of the writing thread keeps the file, unless it is kept for long enough. Raises: UNAVAILABLE.
        """
        if (file := self._call.gate.gate.file) is not None:
            await self._call.driver.in_task(self._call.context.files.require(file))

    # Prove (10.3), or buy. Waits for a node, or for our hub's word of one (10 s), for commits, and, until the deadline,
    # for purchases under way that leave a credit to it (`payer_proofs`), or for its own; once its claim is being
    # written or its credit taken, until that is done. What follows a claim is the payment's, not this request's:
    # several requests with one wait for one attempt (`purchase.service`).

    async def _prove_or_buy(self, presented: PresentedPayment, held: SpendResult) -> SpendResult:
        """Spend a credit that the payer holds, by this payment, or buy one. Raises: the refusal."""
        call, proof = self._call, None
        if held.outcome is Spend.UNKNOWN:
            proof, standing = await self._proof(presented)
            if proof is not None and standing is not None:
                if standing.is_unused:
                    return await self._spend_by(proof, standing)
                proof = None  # it is used: whoever is asked to settle it says why not
        await self._check_next_try(held.purchase)
        result = await self._take(call.driver.in_task(self._buy(presented, held.purchase, proof)))
        if result.outcome is Spend.SPENT:  # 4.3: charged, so it is forwarded whatever its gate asks for by now
            call.gate = await call.driver.in_task(call.context.gates.current(call.gate))
        elif result.outcome is Spend.STALE:
            await call.driver.in_task(call.reload_gate())
            return await self._spend(presented)
        return result

    async def _proof(self, presented: PresentedPayment) -> tuple[PayerProof | None, AuthorizationStanding | None]:
        """Return the payment as a proof, None where it is none, or is to buy in any case; how it stands, if needed."""
        call, wanted = self._call, self._call.http.head.header.get(b"x-credits", b"")
        is_elsewhere = call.gate.is_of_wallets and call.wallet != presented.key.payer
        if is_elsewhere or wanted.strip().lower() == b"buy":
            return None, None
        return await call.driver.in_task(call.context.buying.proofs.look_at(call.gate, presented))

    async def _spend_by(self, proof: PayerProof, standing: AuthorizationStanding) -> SpendResult:
        """Spend a credit by this proof, which is never settled."""
        call, proofs = self._call, self._call.context.buying.proofs
        taking = proofs.spend(proof, standing, self._request(None, is_token=True))
        result = await self._take(call.driver.in_kept_task(taking))
        call.is_proof = result.outcome is Spend.SPENT
        return result

    async def _buy(self, presented: PresentedPayment, failed: Purchase | None, proof: PayerProof | None) -> SpendResult:
        """Judge payer, enabled, network; then make an attempt. STALE: it is to be asked again. Raises: the refusal.

        UNKNOWN where the payer of the `proof` may hold a credit by now. In one task, because who waits for a purchase
        and who buys is decided between two turns of the loop.
        """
        call, buying = self._call, self._call.context.buying
        if proof is not None and (
            await buying.proofs.will_hold(proof.place, call.deadline) or await self._is_given_back()
        ):
            return SpendResult(Spend.UNKNOWN)
        assert call.buyer is not None  # noqa: S101 - it shows a payment
        if call.gate.is_of_wallets:
            request_facts.check_payer(call.wallet, presented.key.payer)
        if (refused := request_facts.not_sold(call.gate, presented.key.network)) is not None:
            if await buying.decisions.is_under_way_again(failed, call.deadline):
                return SpendResult(Spend.STALE)
            raise refused
        client = call.context.limit.client_of(call.http)
        tenant = call.gate.gate.owner_wallet or rate_key(client)
        attempt = PurchaseAttempt(buying.decisions, call.gate, presented, call.buyer, tenant)
        return await buying.buy(attempt, call.deadline)

    async def _check_next_try(self, failed: Purchase | None) -> None:
        """A payment that a transaction made public is tried again, where the token counts, for its buyer alone (4.3).

        Whichever attempt's transaction that was: a later attempt may have sent nothing. `failed` is None where it was
        never claimed. Raises: CREDIT_TOKEN_REQUIRED.
        """
        call = self._call
        if failed is None or next_try_is_buyers(
            call.gate.gate.credit_binding,
            is_payer=call.wallet == failed.payer,
            shows_token=call.named_by_token == failed.id,
        ):
            return
        if shown_in := await call.driver.in_task(call.context.purchases.shown_in(failed)):
            raise credit_refusals.next_try_withheld(failed.id, shown_in)

    # Wait or refuse. Waits for whoever decides, until the deadline; of a payment that was claimed elsewhere our hub is
    # asked which transaction it is, for half a second; of one that failed after it was sold for, what became of it,
    # until the deadline, and what is owed is given back first. The reading thread reads a changed gate.

    async def _wait_or_refuse(self, result: SpendResult, presented: PresentedPayment | None) -> None:
        """Handle every outcome of asking for a credit, but that one was taken, or that nothing is held.

        Returns when it is worth asking again. Raises: the refusal, ExhaustedError.
        """
        call, in_task = self._call, self._call.driver.in_task
        if result.outcome is Spend.STALE:
            await in_task(call.reload_gate())
        elif result.outcome is Spend.SHOWN:
            holds = await in_task(call.context.buying.proofs.is_held_by(result.found))
            raise credit_refusals.shown_before(result.found, holds=holds)
        elif result.outcome is Spend.WITHHELD:
            # 4.3: a client told to pay again would pay for credits that it holds
            raise credit_refusals.withheld(result.found, call.gate.gate.credit_binding, presented)
        elif not await in_task(self._is_to_be_asked_again(result, presented)):  # 4.3: never a 402 while it settles
            raise credit_refusals.ExhaustedError.of(result.found)

    async def _is_to_be_asked_again(self, result: SpendResult, presented: PresentedPayment | None) -> bool:
        """Wait for whoever decides; False where the credits are used up. Raises: the refusal, SETTLEMENT_PENDING."""
        call, purchase = self._call, result.found
        counts = presented is None or call.claimed == purchase.id  # a token or a bearer; or its own claim
        if not counts and presented is not None:
            counts = header_counts(
                call.gate.gate.credit_binding,
                shown=presented.header_hash,
                bought=purchase.header_hash,
                is_payer=call.wallet == purchase.payer,
            )
        buying = call.context.buying
        return await buying.is_to_be_asked_again(result, call.deadline, may_spend=counts) or await self._is_given_back()

    async def _is_given_back(self) -> bool:
        """Wait for refunds in flight; True if a credit may be there again. A 503 charges nothing, so nobody pays anew.

        Raises: UNAVAILABLE where nobody knows, by the deadline at the latest.
        """
        try:
            async with asyncio.timeout_at(self._call.deadline):
                return await self._call.context.purchases.ledger.has_given_back(clock_ms())
        except TimeoutError:
            message = "a credit is being given back; nothing more was charged, send the same request again"
            raise ApiError(Code.UNAVAILABLE, message) from None

    async def _may_hold_again(self, wallet: str) -> bool:
        """Wait while payments of the wallet's void sales are looked at, and for refunds. Raises: SETTLEMENT_PENDING."""
        call, purchases = self._call, self._call.context.purchases
        for purchase in await purchases.unpaid_of_payer(wallet, call.gate.gate.id, _UNPAID_MAX):
            if await call.context.buying.decisions.is_paid_after_all(purchase, call.deadline):
                return True
        # What another call has found to be paid since this one spent is not among these.
        return await purchases.has_credit(wallet, self._request(None), clock_ms()) or await self._is_given_back()

    async def _check_token(self, wallet: str) -> None:
        """Refuse a token beside another wallet's bearer, while it may hold credits. Raises: FORBIDDEN."""
        claim = await self._call.claim_of_token()
        if claim is None or claim.gate_id != self._call.gate.gate.id:
            return
        is_over = claim.expires_ms is not None and claim.expires_ms <= clock_ms()
        is_left = claim.state is PurchaseState.LIVE and claim.remaining > 0 and not is_over
        if is_left or claim.state in {PurchaseState.CLAIMED, PurchaseState.PARKED}:
            request_facts.check_payer(wallet, claim.payer)

    # Leave

    @property
    def is_taken(self) -> bool:
        """True from the commit that took it until its fate is decided."""
        return self.state is CreditState.TAKEN

    def serve(self, status: int) -> None:
        """Charge the credit: the answer goes out (`Ending.SERVED`)."""
        self._close(status)

    async def leave(self, ending: Ending, status: int, code: Code | None = None) -> CreditOutcome:
        """Decide by `FATES` what becomes of the credit, and count the call under this status.

        A client that leaves while it is given back has its credit, too.
        """
        fate, outcome = FATES[self.state][ending], CreditOutcome("the credit was used")
        if fate is Fate.GIVEN_BACK:
            outcome = await self._give_back(status)
            if self._call.driver.cut is Cut.LEFT:
                fate = Fate.CHARGED_THOUGH_GONE
        if fate is Fate.CHARGED_THOUGH_GONE:
            self._close(CLIENT_GONE_STATUS)
        elif fate in {Fate.CHARGED, Fate.GIVEN_BACK}:
            self._close(status, code, failed=True)
        return outcome

    async def _give_back(self, status: int) -> CreditOutcome:
        call = self._call
        purchases = call.context.purchases
        asked = call.driver.in_kept_task(purchases.restore(call.http.request_id, status, clock_ms()))
        try:
            left = await asked
        except StorageError:
            purchases.ledger.refused(call.http.request_id)
            return CreditOutcome("the credit is given back as soon as the database can")
        if left is None:
            return CreditOutcome("the credit was used, and no more of this purchase are given back")
        return CreditOutcome("the credit was given back", left)

    def _close(self, status: int, code: Code | None = None, *, failed: bool = False) -> None:
        call, purchase = self._call, self._call.purchase
        self.state = CreditState.CLOSED
        purchase_id = None if purchase is None else purchase.id
        call.context.traffic.ended(call.gate.gate.id, call.http, status, purchase_id, code, failed=failed)
