"""By which proof a credit is asked for, and what is looked at once more before it is asked for again (contract 4.3).

By the payment's header, its credit token, or as the payer that a bearer shows; `flow` says when, and what the answer
means (`_wait_or_refuse`). Where the gate changed meanwhile, it is read again and asked once more whether it takes the
call. So each way ends in a credit, in a refusal, or in "nothing is held".
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from tollkeeper.api import bearer_token, clock_ms
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.purchases import PurchaseState, Spend, purchase_of_token
from tollkeeper.gateway.call import credit_refusals, request_facts
from tollkeeper.gateway.call.credit_refusals import ExhaustedError
from tollkeeper.gateway.call.responder import Answering
from tollkeeper.storage.ledger.purchase_rows import SpendRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine
    from typing import Any

    from tollkeeper.core.x402.presented_payment import PresentedPayment
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.storage.ledger.purchase_rows import Purchase, SpendResult

_UNPAID_MAX: Final = 20  # as many as one payer may owe on trust, unless the settings say otherwise


class Asking(Answering):
    """One request, as far as a credit is asked for it."""

    def _wish(self, presented: PresentedPayment | None, *, is_token: bool = False) -> SpendRequest:
        """Make the request to the ledger; `presented` is None where another proof than a payment was shown and checked.

        Where the gate binds credits otherwise (`creditBinding`), a payment's header matches no purchase: it counts for
        the request that buys with it (`Buyer.claimed`) and for no other.
        """
        opened, shown, is_once = self.opened, None, False
        if presented is not None:
            shown = presented.header_hash if opened.takes_header else b""
            is_once = presented.accepted is not None
        return SpendRequest(opened.gate.id, opened.gate.version, shown, self.call.request_id, is_token, is_once)

    # Each by a commit of its own (`Database.run`): the loop's where a commit takes less than a millisecond, else the
    # writing thread's. The reading thread looks up before of which purchase a wallet's call is spent, three times at
    # most while others spend it (`single_spends`); where the wallet holds nothing it looks up what is void for its
    # payment, and our hub is asked of each, until `deadline`. The claim of a token beside it the loop reads itself.

    async def _spend_by_token(self, token: str, deadline: float) -> tuple[OpenGate, Purchase]:
        """Spends a credit that the token holds.

        Raises: CREDIT_TOKEN_REQUIRED, ExhaustedError, SETTLEMENT_PENDING; what the gate refuses by then.
        """
        shared = self.shared
        purchase_id = purchase_of_token(shared.token_keys, token)
        if purchase_id is not None:
            await self._require_file()
        while True:
            if self.opened.is_of_wallets:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, credit_refusals.WITHHELD[CreditBinding.WALLET])
            if purchase_id is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            result = await self._charged(
                shared.purchases.spend_token(purchase_id, self._wish(None, is_token=True), clock_ms())
            )
            if result.outcome is Spend.SPENT:
                return self.opened, result.found
            if result.outcome in {Spend.UNKNOWN, Spend.FAILED, Spend.FOREIGN}:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token holds nothing at this PayGate")
            await self._wait_or_refuse(result, deadline)

    async def _spend_of_wallet(self, wallet: str, deadline: float) -> tuple[OpenGate, Purchase] | None:
        """Spends of the oldest purchase that the wallet has here; None where it has none, or the gate asks for more."""
        await self._require_file()
        while self.opened.is_of_wallets:
            taking = self.shared.purchases.spend_of_payer(wallet, self._wish(None), clock_ms())
            result = await self._charged(taking)
            if result.outcome is Spend.SPENT:
                return self.opened, result.found
            if result.outcome is not Spend.UNKNOWN:
                await self._wait_or_refuse(result, deadline)
            elif not (await self._is_one_paid_after_all(wallet, deadline) or await self._is_given_back(deadline)):
                return None
        return None

    async def _is_one_paid_after_all(self, wallet: str, deadline: float) -> bool:
        """Wait while payments of void sales are looked at; True if one is paid. Raises: SETTLEMENT_PENDING."""
        decisions = self.shared.buying.decisions
        for purchase in await self.shared.purchases.unpaid_of_payer(wallet, self.opened.gate.id, _UNPAID_MAX):
            if await decisions.is_paid_after_all(purchase, deadline):
                return True
        return False

    async def _check_token(self, wallet: str) -> None:
        """Beside another wallet's bearer a token spends nothing, but while it may hold credits nobody is to pay anew.

        Raises: FORBIDDEN.
        """
        claim = await self._claim_of_token()
        if claim is None or claim.gate_id != self.opened.gate.id:
            return
        is_over = claim.expires_ms is not None and claim.expires_ms <= clock_ms()
        is_left = claim.state is PurchaseState.LIVE and claim.remaining > 0 and not is_over
        if is_left or claim.state in {PurchaseState.CLAIMED, PurchaseState.PARKED}:
            request_facts.check_payer(wallet, claim.payer)

    def _named_by_token(self) -> str | None:
        """The id of the purchase whose credit token is shown."""
        token = self.call.head.header.get(b"x-credit-token", b"").decode("latin-1")
        return purchase_of_token(self.shared.token_keys, token)

    async def _claim_of_token(self) -> Purchase | None:
        """The claim whose credit token is shown."""
        purchase_id = self._named_by_token()
        return None if purchase_id is None else await self.shared.purchases.by_id(purchase_id)

    def _may_spend(self, purchase: Purchase, presented: PresentedPayment | None) -> bool:
        """Does what is shown count for what this claim buys? One that was never sent is sent for such (decision 0009).

        `presented` None where it is a token, or a bearer.
        """
        is_own = self.buyer is not None and self.buyer.claimed == purchase.id
        if presented is None or is_own:
            return True
        if self.opened.takes_header:  # where a bearer spends nothing, though the gate may ask for one
            return hmac.compare_digest(presented.header_hash, purchase.header_hash)
        return self.wallet == purchase.payer

    def _may_spend_as_payer(self, presented: PresentedPayment, result: SpendResult) -> bool:
        """May the payer, whose bearer is there, spend though the payment that he shows does not count at this gate?"""
        opened = self.opened
        if opened.takes_header or self.wallet != presented.key.payer:
            return False
        return result.outcome is Spend.WITHHELD or (opened.is_of_wallets and result.outcome is Spend.EXHAUSTED)

    def _spend_withheld(self, withheld: SpendResult) -> Coroutine[Any, Any, SpendResult]:
        return self.shared.purchases.spend_token(withheld.found.id, self._wish(None), clock_ms())

    async def _spend_as_payer(self, shown: Purchase, deadline: float) -> tuple[OpenGate, Purchase] | None:
        """A credit of the payer, who shows what he bought here before; None where the gate asks for more by now."""
        taken = await self._spend_of_wallet(shown.payer, deadline)
        if taken is None and self.opened.is_of_wallets:
            raise ExhaustedError.of(shown)
        return taken

    async def _require_file(self) -> None:
        """A file PayGate takes a credit for what its store can give: 5 s. Raises: UNAVAILABLE."""
        if (file := self.opened.gate.file) is not None:
            await self.shared.files.require(file)

    def _deadline(self) -> float:
        """Until when this call may wait, from its arrival, by the loop's clock; it is told so half a second later."""
        waited_seconds = (time.perf_counter_ns() - self.call.started_ns) / 1e9
        return asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS - waited_seconds

    @abstractmethod
    async def _wait_or_refuse(
        self, result: SpendResult, deadline: float, presented: PresentedPayment | None = None
    ) -> None:
        """Handle every other outcome of asking for a credit, as `Arriving` says."""

    async def _is_given_back(self, deadline: float) -> bool:
        """Wait for refunds in flight; True if a credit may be there again. A 503 charges nothing, so nobody pays anew.

        Raises: UNAVAILABLE where nobody knows, by `deadline` at the latest.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await self.shared.purchases.ledger.has_given_back(clock_ms())
        except TimeoutError:
            message = "a credit is being given back; nothing more was charged, send the same request again"
            raise ApiError(Code.UNAVAILABLE, message) from None

    async def _reload(self, deadline: float) -> None:
        """The gate changed: as it is now. Raises: what it refuses by now; UNAVAILABLE where `deadline` has passed."""
        if asyncio.get_running_loop().time() >= deadline:
            message = "the PayGate changes all the time; nothing more was charged, send the same payment again"
            raise ApiError(Code.UNAVAILABLE, message)
        slug = self.opened.gate.slug
        reloaded = self.shared.gates.reload(slug)
        self.opened = opened = await self._or_deleted(slug, reloaded)
        # What it was let through by may hold no more, however long it has waited meanwhile (contract 3.3).
        request_facts.check_method(opened.gate, self.call)
        request_facts.check_forwardable(self.call, self.asked, opened)
        if self.wallet is None and self._is_login_wanted():
            await self._log_in()

    async def _or_deleted(self, slug: str, looked_up: Awaitable[OpenGate]) -> OpenGate:
        """A deleted gate is there for who shows what was claimed there before (contract 2), and is none for others.

        Raises: as the look-up, NOT_FOUND among it.
        """
        try:
            return await looked_up
        except ApiError as error:
            if error.code is not Code.NOT_FOUND or not (self.asked.has_proof or self._bearer() is not None):
                raise
            opened = await self.shared.gates.deleted(slug)
            if not await self._may_be_owed_at(opened):
                raise
            return opened

    async def _may_be_owed_at(self, opened: OpenGate) -> bool:
        """Is the payment or the token of a claim at this gate, or may its wallet have one there?"""
        shared = self.shared
        shown, presented = [await self._claim_of_token()], None
        if request_facts.shows_payment(self.call):
            with contextlib.suppress(ApiError):  # one that cannot be read was claimed nowhere
                presented = shared.proofs.read(self.call.head.header, opened.offers)
        if presented is not None:
            shown.append(await shared.purchases.by_payment(presented.key))
        mine = [claim for claim in shown if claim is not None and claim.gate_id == opened.gate.id]
        if any(claim.state is not PurchaseState.SHOWN for claim in mine):
            return True
        if not opened.is_of_wallets or self._bearer() is None:  # elsewhere a bearer proves nothing
            return False
        try:
            await self._log_in()
        except ApiError as error:
            if error.status != 401:
                raise
            return False
        return True

    # Who calls: step 2 of `flow` says what that waits for.

    def _is_login_wanted(self) -> bool:
        """Return True if the gate asks who calls, or may serve a caller by its wallet."""
        opened = self.opened
        return opened.gate.require_auth or (not opened.takes_header and self._bearer() is not None)

    async def _log_in(self) -> None:
        """Learns the bearer's wallet. Raises: AUTH_REQUIRED and what else is wrong with a bearer."""
        session = await self.shared.auth.authenticate(self._bearer())
        self.wallet = session.wallet

    def _bearer(self) -> str | None:
        """None where none is sent: what `Authorization` says in another scheme is no business of the gateway's."""
        shown = self.call.head.header.get(b"authorization")
        return None if shown is None else bearer_token({"authorization": shown.decode("latin-1")})
