"""The state of one call at a PayGate, and the gate and the bearer that it is about (contract 4.2).

`flow` takes the call from step to step, `credit` takes its credit, `responder` answers it; each knows the call by this.
Decides nothing about payments.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, cast

from tollkeeper.api import bearer_token
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.purchases import PurchaseState, purchase_of_token
from tollkeeper.gateway.call import request_facts
from tollkeeper.gateway.call.driver import CallDriver

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.call.context import GatewayContext
    from tollkeeper.gateway.call.request_facts import RequestFacts
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.gateway.purchase.service import Waiter
    from tollkeeper.storage.ledger.purchase_rows import Purchase

_NOT_FOUND: Final = cast("OpenGate", None)  # each step behind the first one has a gate, and looks at it often


class PaidCall:
    """One call. Every field is there from the first step on."""

    # Defaults stand here because most of them are never changed: to set them costs more than they say.
    gate: OpenGate = _NOT_FOUND  # as it was last seen
    wallet: str | None = None  # its bearer's, where one was asked for or may count
    presented: PresentedPayment | None = None  # its payment, once that is read
    buyer: Waiter | None = None  # from its payment or token on: what it wants of a purchase
    purchase: Purchase | None = None  # the one whose credit it has
    is_proof = False  # its credit was spent by its payment, which is never settled (contract 10.3)

    def __init__(self, context: GatewayContext, http: InboundCall) -> None:
        self.context = context
        self.http = http  # its head, its body and its answer, on its connection
        self.facts: RequestFacts = http.place
        self.driver = CallDriver(context.under_way, http.fail)

    @property
    def has_bought(self) -> bool:
        """True if this very request wrote the claim that its credit was taken of."""
        return self.buyer is not None and self.purchase is not None and self.buyer.claimed == self.purchase.id

    @property
    def claimed(self) -> str | None:
        """The purchase whose claim this request wrote: its caller may be told that one's credit token."""
        return None if self.buyer is None else self.buyer.claimed

    @property
    def deadline(self) -> float:
        """The moment until which it may wait, by the loop's clock; it is told so half a second later."""
        waited_seconds = (time.perf_counter_ns() - self.http.started_ns) / 1e9
        return asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS - waited_seconds

    def present(self) -> PresentedPayment:
        """Read the payment that the call shows. Raises: the refusal."""
        self.presented = presented = self.context.payments.read(self.http.head.header, self.gate.offers)
        return presented

    # The gate. In memory; a task reads one that is not, by the reading thread, and makes its 402s: without a limit of
    # time, and again where the gate changes meanwhile. A deleted one is read each time, with the claim of what is shown
    # there and, where wallets hold its credits, the session of a bearer.

    async def open_gate(self) -> OpenGate:
        """Read the gate of the call's slug. Raises: NOT_FOUND."""
        slug = self.facts.slug
        self.gate = gate = await self._or_deleted(slug, self.context.gates.by_slug(slug))
        return gate

    async def reload_gate(self) -> None:
        """Read a gate that changed, and check the call by it. Raises: what it refuses by now; UNAVAILABLE."""
        if asyncio.get_running_loop().time() >= self.deadline:
            message = "the PayGate changes all the time; nothing more was charged, send the same payment again"
            raise ApiError(Code.UNAVAILABLE, message)
        slug = self.gate.gate.slug
        self.gate = gate = await self._or_deleted(slug, self.context.gates.reload(slug))
        # What it was let through by may hold no more, however long it has waited meanwhile (contract 3.3).
        request_facts.check_method(gate.gate, self.http)
        request_facts.check_forwardable(self.http, self.facts, gate)
        if self.wallet is None and self.is_login_wanted:
            await self.log_in()

    async def newest_gate(self) -> OpenGate:
        """Return the gate as it is by now: a 402 behind a wait asks for what it asks for (contract 3.3)."""
        gate, gates = self.gate, self.context.gates
        if not gate.is_deleted:
            slug = gate.gate.slug
            kept = gates.kept(slug)
            self.gate = gate = await self.driver.in_task(gates.by_slug(slug)) if kept is None else kept
        return gate

    async def _or_deleted(self, slug: str, looked_up: Awaitable[OpenGate]) -> OpenGate:
        """Give a deleted gate to who shows what was claimed there before (contract 2); it is none for others.

        Raises: as the look-up, NOT_FOUND among it.
        """
        try:
            return await looked_up
        except ApiError as error:
            shows_nothing = self.bearer is None and not request_facts.shows_proof(self.http.head)
            if error.code is not Code.NOT_FOUND or shows_nothing:
                raise
            gate = await self.context.gates.deleted(slug)
            if not await self._may_be_owed_at(gate):
                raise
            return gate

    async def _may_be_owed_at(self, gate: OpenGate) -> bool:
        """Return True if a claim at this gate is shown, by payment or token, or its wallet may have one there."""
        shown = [await self.claim_of_token()]
        if request_facts.shows_payment(self.http):
            with contextlib.suppress(ApiError):  # one that cannot be read was claimed nowhere
                presented = self.context.payments.read(self.http.head.header, gate.offers)
                shown.append(await self.context.purchases.by_payment(presented.key))
        mine = [claim for claim in shown if claim is not None and claim.gate_id == gate.gate.id]
        if any(claim.state is not PurchaseState.SHOWN for claim in mine):
            return True
        if not gate.is_of_wallets or self.bearer is None:  # elsewhere a bearer proves nothing
            return False
        try:
            await self.log_in()
        except ApiError as error:
            if error.status != 401:
                raise
            return False
        return True

    # The bearer. A task asks for its session: by the reading thread, and where a guest comes for the first time by a
    # commit of the writing one; or over HTTP where another hub issued it (`auth.trusted`: 5 s a question, two at most).
    # An EdDSA signature is checked in the loop.

    @property
    def is_login_wanted(self) -> bool:
        """True if the gate asks who calls, or may serve a caller by its wallet."""
        return self.gate.gate.require_auth or (not self.gate.takes_header and self.bearer is not None)

    async def log_in(self) -> None:
        """Learn the bearer's wallet. Raises: AUTH_REQUIRED and what else is wrong with a bearer."""
        session = await self.context.auth.authenticate(self.bearer)
        self.wallet = session.wallet

    @property
    def bearer(self) -> str | None:
        """The bearer; None where none is sent: `Authorization` of another scheme is no business of the gateway's."""
        shown = self.http.head.header.get(b"authorization")
        return None if shown is None else bearer_token({"authorization": shown.decode("latin-1")})

    # The credit token

    @property
    def named_by_token(self) -> str | None:
        """The id of the purchase whose credit token is shown."""
        token = self.http.head.header.get(b"x-credit-token", b"").decode("latin-1")
        return purchase_of_token(self.context.token_keys, token)

    async def claim_of_token(self) -> Purchase | None:
        """Look the claim up whose credit token is shown."""
        purchase_id = self.named_by_token
        return None if purchase_id is None else await self.context.purchases.by_id(purchase_id)
