"""How a call gets a credit that it does not simply hold: it waits, buys, or spends by its token or as the payer.

Contract 4.3: what a payment that is presented again is answered, and what each `creditBinding` asks for. In tasks; how
a forwarded call has its credit back (`give_back`) by callbacks. The request's own story is `access`, what buying is
`buying`, and where a credit is taken `storage.spending`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tollkeeper.api import bearer_token, clock_ms
from tollkeeper.core.challenge import Profile
from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.paygate_fields import CreditBinding
from tollkeeper.core.purchases import SETTLEMENT_FAILED, Spend, purchase_of_token
from tollkeeper.core.statistics import CLIENT_GONE_STATUS
from tollkeeper.edge.turns import Together
from tollkeeper.gateway import calls
from tollkeeper.gateway.buying import Buyer
from tollkeeper.gateway.steps import GIVEN_UP_STATUS, ExhaustedError, Stage, Steps
from tollkeeper.gateway.unpaid import UnpaidAnswers
from tollkeeper.storage.database import StorageError
from tollkeeper.storage.purchase_rows import SpendRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from tollkeeper.auth import Auth
    from tollkeeper.edge.call import InboundCall
    from tollkeeper.edge.forwarding import Forwarder
    from tollkeeper.gateway.buying import Buying, Presented
    from tollkeeper.gateway.calls import Asked
    from tollkeeper.gateway.files import Files
    from tollkeeper.gateway.gates import Gates, OpenGate
    from tollkeeper.gateway.limiting import UnpaidLimit
    from tollkeeper.gateway.proofs import Proofs
    from tollkeeper.gateway.traffic import Traffic
    from tollkeeper.storage.purchase_rows import Purchase, SpendResult
    from tollkeeper.storage.purchases import Purchases

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Parts:
    """What all requests share."""

    gates: Gates
    purchases: Purchases
    buying: Buying
    forwarder: Forwarder
    files: Files
    traffic: Traffic
    auth: Auth
    proofs: Proofs
    limit: UnpaidLimit
    token_keys: Sequence[bytes]
    profile: Profile
    body_limit_bytes: int
    random_bytes: Callable[[int], bytes]
    ready_402s: UnpaidAnswers = field(default_factory=UnpaidAnswers)
    answered: Together = field(default_factory=Together)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    charging: set[asyncio.Future[Any]] = field(default_factory=set)  # takes credits or gives them back, never cancelled


class Crediting(Steps):
    """One request that wants a credit.

    `opened` is the gate as it was last seen, `wallet` its bearer's where one was asked for; `buyer` is there from the
    proof on. `is_charged`: a credit was taken, though it is not forwarded yet: it counts as a call however it ends.
    """

    asked: Asked
    opened: OpenGate
    buyer: Buyer | None = None
    is_charged = False
    is_returning = False  # its credit is being given back, and its end is noted behind that
    wallet: str | None = None

    def __init__(self, access: Parts, call: InboundCall) -> None:
        self.access = access
        self.call = call

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """See `Steps`."""
        return self.access.tasks

    @abstractmethod
    def end(self, status: int, code: Code | None = None, *, failed: bool = False) -> None:
        """Counts the end of a paid call; `code` says what was wrong where the answer is not the target's."""

    def wish(self, presented: Presented | None) -> SpendRequest:
        """What is asked of the ledger; `presented` None where another proof than a payment was shown and checked.

        Where the gate binds credits otherwise (`creditBinding`), a payment's header matches no purchase: it counts for
        the request that buys with it (`Buyer.claimed`) and for no other.
        """
        opened, shown = self.opened, None
        if presented is not None:
            shown = presented.header_hash if opened.takes_header else b""
        return SpendRequest(opened.gate.id, opened.gate.version, shown, self.call.request_id)

    def is_login_wanted(self) -> bool:
        """Whether the gate asks who calls, or may serve a caller by who it is."""
        opened = self.opened
        return opened.gate.require_auth or (not opened.takes_header and b"authorization" in self.call.head.header)

    async def log_in(self) -> None:
        """Learns the bearer's wallet. Raises: AUTH_REQUIRED and what else is wrong with a bearer."""
        bearer = self.call.head.header.get(b"authorization", b"").decode("latin-1")
        session = await self.access.auth.authenticate(bearer_token({"authorization": bearer}))
        self.wallet = session.wallet

    def deadline(self) -> float:
        """Until when this call may wait for somebody's decision, in the loop's time; counted from its arrival.

        Whoever is refused for it is told so after half a second more, in which the hub is asked for the transaction.
        """
        waited_seconds = (time.perf_counter_ns() - self.call.started_ns) / 1e9
        return asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS - waited_seconds

    async def spend_or_buy(
        self, presented: Presented, buyer: Buyer, deadline: float, result: SpendResult | None
    ) -> tuple[OpenGate, Purchase]:
        """Spends a held credit of this payment or buys with it; `result` is what asking said already.

        Returns the gate as it is by then. Raises: the refusal, ExhaustedError.
        """
        access = self.access
        while True:
            if result is None:
                buyer.wish = self.wish(presented)
                result = await self._charged(access.purchases.spend(presented.key, buyer.wish, clock_ms()))
            if result.outcome is Spend.SPENT:
                return self.opened, purchase_of_spend(result)
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                await self._check_next_try(result.purchase)
                bought = await self._buy(presented, buyer, deadline)
                if bought is not None:
                    self.is_charged = True  # so it is forwarded whatever its gate asks for by now
                    return await access.gates.current(self.opened), purchase_of_spend(bought)
                await self._reload(deadline)
            elif self._is_payer_without_proof(presented, result):
                if not self.opened.is_of_wallets:
                    result = await self._charged(self._spend_as_payer(result))
                    continue
                if (taken := await self._spend_known(purchase_of(result), deadline)) is not None:
                    return taken
            else:
                await self._settle_outcome(result, deadline, presented)
            result = None

    async def _check_next_try(self, failed: Purchase | None) -> None:
        """A payment that a transaction made public is tried again, where the token counts, for its buyer alone.

        Whichever attempt's it was: a later one may have sent nothing. `failed` is None of a payment that was never
        claimed. Raises: CREDIT_TOKEN_REQUIRED.
        """
        if failed is None or self.opened.gate.credit_binding is not CreditBinding.TOKEN or self.wallet == failed.payer:
            return
        token = self.call.head.header.get(b"x-credit-token", b"").decode("latin-1")
        if purchase_of_token(self.access.token_keys, token) == failed.id:
            return
        if shown_in := await self.access.purchases.shown_in(failed):
            raise calls.next_try_withheld(failed.id, shown_in)

    def _is_payer_without_proof(self, presented: Presented, result: SpendResult) -> bool:
        """The payment shown does not count at this gate: is the payer's bearer there, for whom credits may be left?"""
        opened = self.opened
        if opened.takes_header or self.wallet != presented.key.payer:
            return False
        return result.outcome is Spend.WITHHELD or (opened.is_of_wallets and result.outcome is Spend.EXHAUSTED)

    def _spend_as_payer(self, withheld: SpendResult) -> Coroutine[Any, Any, SpendResult]:
        return self.access.purchases.spend_token(purchase_of(withheld).id, self.wish(None), clock_ms())

    async def _spend_known(self, shown: Purchase, deadline: float) -> tuple[OpenGate, Purchase] | None:
        """A credit of the payer, who shows what he bought here before; None where the gate asks for more by now."""
        taken = await self.spend_of_wallet(shown.payer, deadline)
        if taken is None and self.opened.is_of_wallets:
            raise exhausted(shown)
        return taken

    async def spend_of_wallet(self, wallet: str, deadline: float) -> tuple[OpenGate, Purchase] | None:
        """Spends of the oldest purchase that the wallet has here; None where it has none, or the gate asks for more."""
        while self.opened.is_of_wallets:
            taking = self.access.purchases.spend_of_payer(wallet, self.wish(None), clock_ms())
            result = await self._charged(taking)
            if result.outcome is Spend.SPENT:
                return self.opened, purchase_of_spend(result)
            if result.outcome is Spend.UNKNOWN:
                return None
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            else:
                await self._settle_outcome(result, deadline)
        return None

    async def _charged(self, taking: Coroutine[Any, Any, SpendResult]) -> SpendResult:
        """Its result. It goes on where the client leaves meanwhile: what commits then is charged, and ended here."""
        future = self.uncancelled(self._taken(taking))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self.left)
            raise

    def uncancelled(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """What takes a credit or gives one back: begun, and waited for at a stop, whatever becomes of the request."""
        future = asyncio.ensure_future(work)
        self.access.charging.add(future)
        future.add_done_callback(self.access.charging.discard)
        return future

    def give_back(self, error: ApiError, answer: Callable[[int | None], None]) -> None:
        """Gives the credit back, then has this `answer`ed, with how many are left; None where it is not given back.

        Begun at once: a client that leaves from now on has its credit, too, and its call ends here.
        """
        self.is_returning = True
        restoring = self.uncancelled(self.access.purchases.restore(self.call.request_id, error.status, clock_ms()))
        restoring.add_done_callback(lambda done: self.guard(self._given_back, done, answer))

    def _given_back(self, restoring: asyncio.Future[int | None], answer: Callable[[int | None], None]) -> None:
        fault, is_gone = restoring.exception(), self.stage is Stage.OVER
        self.is_returning = False
        if is_gone:
            self._end_unanswered()
        if fault is not None and not isinstance(fault, StorageError):
            raise fault
        if not is_gone:
            answer(None if fault is not None else restoring.result())

    async def _taken(self, taking: Coroutine[Any, Any, T]) -> T:
        """Its result. Where nobody knows whether it took a credit the call is refused, and what it took given back."""
        try:
            return await taking
        except StorageError:
            self.access.purchases.ledger.refused(self.call.request_id)
            raise

    def left(self, taken: asyncio.Future[SpendResult]) -> None:
        """What was decided about a credit whose call had ended by then."""
        if not taken.cancelled() and taken.exception() is None and taken.result().outcome is Spend.SPENT:
            if self.is_cut:
                self.give_back_unanswered()
            else:
                self._end_unanswered()

    def give_back_unanswered(self) -> None:
        """Gives back the credit of a call that the stop has cut: a 503 charges nothing (contract 4.5)."""
        cut = ApiError(Code.UNAVAILABLE, "the gateway stopped before this was answered")
        self.give_back(cut, lambda _: None)

    def _end_unanswered(self) -> None:
        if self.is_cut:
            self.end(GIVEN_UP_STATUS, Code.UNAVAILABLE, failed=True)
        else:
            self.end(CLIENT_GONE_STATUS)

    async def _reload(self, deadline: float) -> None:
        """The gate changed: as it is now. Raises: what it refuses by now; UNAVAILABLE where `deadline` has passed."""
        if asyncio.get_running_loop().time() >= deadline:
            message = "the PayGate changes all the time; nothing was charged, send the same payment again"
            raise ApiError(Code.UNAVAILABLE, message)
        self.opened = opened = await self.access.gates.reload(self.opened.gate.slug)
        # What it was let through by may hold no more, however long it has waited meanwhile (contract 3.3).
        calls.check_method(opened.gate, self.call)
        calls.check_forwardable(self.call, self.asked, opened)
        if self.wallet is None and self.is_login_wanted():
            await self.log_in()

    async def _buy(self, presented: Presented, buyer: Buyer, deadline: float) -> SpendResult | None:
        gate = self.opened.gate
        if not gate.is_enabled:
            raise ApiError(Code.NOT_FOUND, "this PayGate sells nothing at present")
        if self.opened.is_of_wallets:
            calls.check_payer(self.wallet, presented.key.payer)
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
        return await self._taken(self.access.buying.buy(self.opened, presented, buyer, deadline))

    async def spend_by_token(self, token: str, deadline: float) -> tuple[OpenGate, Purchase]:
        """Spends a credit that the token holds. Raises: CREDIT_TOKEN_REQUIRED, ExhaustedError."""
        access = self.access
        purchase_id = purchase_of_token(access.token_keys, token)
        while True:
            if self.opened.is_of_wallets:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, calls.WITHHELD[CreditBinding.WALLET])
            if purchase_id is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            result = await self._charged(access.purchases.spend_token(purchase_id, self.wish(None), clock_ms()))
            if result.outcome is Spend.SPENT:
                return self.opened, purchase_of_spend(result)
            if result.outcome is Spend.STALE:
                await self._reload(deadline)
            elif result.outcome in {Spend.UNKNOWN, Spend.FAILED, Spend.FOREIGN}:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token holds nothing at this PayGate")
            else:
                await self._settle_outcome(result, deadline)

    async def _settle_outcome(self, result: SpendResult, deadline: float, presented: Presented | None = None) -> None:
        """What the other outcomes of asking for a credit mean. Returns when it is worth asking again."""
        purchase = purchase_of(result)
        if result.outcome is Spend.IN_FLIGHT:
            await self.access.buying.wait_decided(purchase, deadline)
        elif result.outcome is Spend.EXHAUSTED:
            raise exhausted(purchase)
        elif result.outcome is Spend.WITHHELD:
            is_repeatable = presented is not None and presented.tender.is_repeatable
            raise calls.withheld(purchase, self.opened.gate.credit_binding, is_repeatable=is_repeatable)
        elif result.outcome is Spend.PARKED:
            raise self.access.buying.pending(purchase)
        else:
            raise calls.spent_elsewhere(purchase)


def purchase_of(result: SpendResult) -> Purchase:
    """The purchase that was asked for a credit."""
    assert result.purchase is not None  # noqa: S101 - every outcome but UNKNOWN has one
    return result.purchase


def exhausted(purchase: Purchase) -> ExhaustedError:
    """Its credits are used up, or void because its payment failed after the sale."""
    return ExhaustedError(purchase.payer, is_unpaid=purchase.failure == SETTLEMENT_FAILED)


def purchase_of_spend(result: SpendResult) -> Purchase:
    """The purchase that a credit was taken of."""
    assert result.outcome is Spend.SPENT  # noqa: S101 - every other outcome was answered
    return purchase_of(result)
