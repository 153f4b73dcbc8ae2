"""The fee for a direct transfer, where the operator asks for one (contract 8, `TOLLKEEPER_TRANSFER_FEE`).

A fee is bought as any call is: each network has a PayGate of the program's own, which no path reaches and nobody
manages, with one credit a payment. So claim, settlement, crash and ledger are those of purchases. The credit is spent
for one transfer, named by the fee's payment and the transfer's nonce: asked again, the same pair costs nothing more. A
transfer that was clearly not made gives the credit back; one of unknown outcome does not, until it is known, whatever
process asks then, and whether a fee is asked for by then or not: that call is interrupted by nothing. A fee that an
operator honoured by hand is public, so its credit token is shown beside it, as at any gate.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.paygates import CreateDefaults, NewPayGate, parse_create, updated
from tollkeeper.core.purchases import CallState, Spend, purchase_of_token
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import family_of
from tollkeeper.gateway import calls
from tollkeeper.gateway.access import Attempt
from tollkeeper.gateway.buying import Buyer
from tollkeeper.gateway.steps import ExhaustedError
from tollkeeper.storage.purchase_rows import SpendRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.networks import Network
    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.gateway.buying import Buying, Presented
    from tollkeeper.gateway.gates import Gates, OpenGate
    from tollkeeper.gateway.proofs import Proofs
    from tollkeeper.storage.paygates import PayGates
    from tollkeeper.storage.purchase_rows import SpendResult
    from tollkeeper.storage.purchases import Purchases
    from tollkeeper.storage.spending import Unless

# No slug has a dot, so no path reaches the gates of the fees; nobody knows a token whose hash these bytes are.
_SLUG: Final = "transfer.{network}"
_NOBODYS_TOKEN: Final = bytes(32)
_TRIES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class FeeCharges:
    """The charges that were made for transfers, at whatever fee: none may be asked for by now, or another one."""

    purchases: Purchases
    proofs: Proofs

    def read(self, header: str, transfer: PaymentKey) -> Presented:
        """The fee's payment. Raises: the refusal, also of the transfer's own: as a fee it would be used up."""
        presented = self.proofs.read(header.encode("latin-1"))
        if presented.key == transfer:
            message = "the fee is a payment of its own: sign another one than the transfer that the body describes"
            raise payment_error(Code.PAYMENT_INVALID, message, details={"check": "fee"})
        return presented

    async def standing(self, presented: Presented, transfer: PaymentKey) -> tuple[str, bool]:
        """The id under which this pair is charged, and whether it is already."""
        pair = f"{presented.key}/{transfer.payer}/{transfer.nonce}"
        name = hashlib.sha256(pair.encode()).hexdigest()[:32]
        for number in range(1, _TRIES_MAX):
            call_id = f"fee-{name}-{number}"
            state = await self.purchases.call_state(call_id)
            if state is not CallState.RESTORED:
                return call_id, state is not None
        raise payment_error(Code.PAYMENT_INVALID, "this transfer failed too often: sign a new one")

    async def is_charged(self, call_id: str) -> bool:
        """Is a fee charged under this id, and not given back?"""
        return await self.purchases.call_state(call_id) not in {None, CallState.RESTORED}

    async def has_bought(self, payment: PaymentKey) -> bool:
        """Was a fee, or anything else here, paid with it? Then it is no transfer of its own."""
        return await self.purchases.by_payment(payment) is not None

    def former(self, call_id: str) -> str | None:
        """Under which the same pair was charged before, and given that back; None of its first charge."""
        pair, _, number = call_id.rpartition("-")
        return None if number == "1" else f"{pair}-{int(number) - 1}"

    async def give_back(
        self, call_id: str, status: int, *, was_made: bool = False, unless: Unless | None = None
    ) -> None:
        """The transfer was clearly not made: the fee stays as a credit for the next try.

        `was_made`: also where it was told as made before. `unless`: see `Purchases.restore`. Once, and at most once,
        whoever asks at the same time.
        """
        await self.purchases.restore(call_id, status, clock_ms(), is_ended=was_made, unless=unless)

    async def keep(self, call_id: str) -> bool:
        """The transfer was made. False where its fee had been given back, to another request of the pair."""
        await self.purchases.end_calls({call_id: 200}, clock_ms())
        return await self.purchases.call_state(call_id) is not CallState.RESTORED


@dataclass(slots=True, kw_only=True)
class TransferFees:
    """Charges today's fee. `fee_micro` is what one transfer costs, paid to `pay_to`, on the networks of its family."""

    fee_micro: int
    pay_to: str
    store: PayGates
    gates: Gates
    purchases: Purchases
    buying: Buying
    token_keys: Sequence[bytes]
    _ready: set[str] = field(default_factory=set)

    def is_paid_on(self, network: Network) -> bool:
        """Can its payee be paid there?"""
        return network.family is family_of(self.pay_to)

    async def opened(self, network: str) -> OpenGate:
        """The gate that sells transfers on this network, at today's fee. Raises: UNAVAILABLE."""
        slug = _SLUG.format(network=network)
        if network not in self._ready:
            await self._prepare(network, slug)
            self._ready.add(network)
        return await self.gates.by_slug(slug)

    async def _prepare(self, network: str, slug: str) -> None:
        terms = {"price": format_usdc(self.fee_micro), "paymentAddress": self.pay_to}
        gate = await self.store.by_slug(slug, clock_ms())
        if gate is None:
            body = {**terms, "network": network, "title": "Direct transfer", "targetUrl": "https://transfer.invalid/"}
            new = parse_create(body, CreateDefaults(network, self.pay_to))
            try:
                await self.store.create(NewPayGate(slug, new.fields), None, _NOBODYS_TOKEN, clock_ms())
            except ApiError as error:
                if error.code is not Code.CONFLICT:  # another process was faster
                    raise
        elif (gate.price_micro, gate.payment_address) != (self.fee_micro, self.pay_to):
            await self.store.update(gate.id, lambda current: updated(current, terms, clock_ms(), frozenset()))
            await self.gates.changed(slug)

    async def charge(self, network: str, presented: Presented, token: str, call_id: str) -> None:
        """Spends the fee's credit for the transfer, and buys it first where it must be.

        `token`: the credit token that was shown beside the payment, "" for none; it counts where the payment does not.

        Raises: ExhaustedError; the refusal; SETTLEMENT_PENDING, UNAVAILABLE.
        """
        deadline = asyncio.get_running_loop().time() + SETTLE_WAIT_SECONDS
        opened = await self.opened(network)
        if presented.key.network != network:
            raise payment_error(Code.INVALID_NETWORK, "the fee is paid on the network of the transfer")
        while True:
            wish = SpendRequest(opened.gate.id, opened.gate.version, presented.header_hash, call_id)
            result: SpendResult | None = await self.purchases.spend(presented.key, wish, clock_ms())
            if result is not None and result.outcome in {Spend.UNKNOWN, Spend.FAILED}:
                buyer = Buyer(on_left=_goes_on, wish=wish)
                result = await self.buying.buy(Attempt(self.buying, opened, presented, buyer), deadline)
            if result is not None and result.outcome is Spend.WITHHELD:
                withheld_id = calls.purchase_of(result).id
                if purchase_of_token(self.token_keys, token) == withheld_id:
                    wish = SpendRequest(opened.gate.id, opened.gate.version, None, call_id, is_token=True)
                    result = await self.purchases.spend_token(withheld_id, wish, clock_ms())
            if result is None or result.outcome is Spend.STALE:
                opened = await self.gates.reload(opened.gate.slug)
            elif result.outcome is Spend.SPENT:
                return
            else:
                await self._wait(result, presented, token, deadline)

    async def _wait(self, result: SpendResult, presented: Presented, token: str, deadline: float) -> None:
        purchase = calls.purchase_of(result)
        if result.outcome is Spend.WITHHELD:
            raise payment_error(
                Code.PAYMENT_INVALID,
                "this fee was honoured by hand, or paid with other bytes than these: send its X-Credit-Token beside it",
                details={"purchaseId": purchase.id},
            )
        # A claim that was never sent is sent only while somebody waits who may spend what it buys (decision 0067).
        is_same = hmac.compare_digest(presented.header_hash, purchase.header_hash)
        may_spend = is_same or purchase_of_token(self.token_keys, token) == purchase.id
        if not await self.buying.is_to_be_asked_again(result, deadline, may_spend=may_spend):
            raise ExhaustedError.of(purchase)  # it was spent for another transfer


def _goes_on(_left: asyncio.Future[SpendResult]) -> None:
    """A caller who left finds the fee charged when the same pair is asked again."""
