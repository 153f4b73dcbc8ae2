"""A payer's proof: a signed payment spends a credit that its payer holds, and is never settled (contract 10.3).

    1. Is it a good payment here and now, but for its balance (`PayerProofs.of`)? Else it buys, or is refused as ever.
    2. Does its payer hold a credit here, bought on the same network? Then a node says whether it is unused, and one
       commit keeps its identity and takes the credit (`storage.ledger.payer_proofs`).
    3. Is its payer buying here, so that a credit is left for it (`will_hold`)? Then it waits for that. Else it buys.

The payment goes nowhere: our hub is asked by its identity alone, and what is kept of it is that. Where neither a node
of this gateway's nor our hub can be asked there are no proofs. Who waits and who buys is decided between two turns of
the event loop, so that each credit that is to come has one who waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.payment_offers import require_valid_now
from tollkeeper.core.purchases import Terms, ends_soon, terms_for
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.rules import read_transfer
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.gateway.facilitator.client import unavailable
from tollkeeper.gateway.purchase.monitor import key_of, new_purchase_id
from tollkeeper.storage.ledger.payer_proofs import Place

if TYPE_CHECKING:
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.gateway.purchase.decisions import PurchaseDecisions
    from tollkeeper.storage.ledger.payer_proofs import ShownPayments
    from tollkeeper.storage.ledger.purchase_rows import Purchase, SpendRequest, SpendResult

_LOG = structlog.get_logger("tollkeeper.gateway.purchase.payer_proofs")
_UNDER_WAY_MS: Final = 30_000  # a claim that is older may never be decided


@dataclass(frozen=True, slots=True)
class PayerProof:
    """A payment that may spend what its payer holds at the place. `terms`: what it buys where nothing is held."""

    presented: PresentedPayment
    place: Place
    terms: Terms


@dataclass(slots=True, eq=False)
class _UnderWay:
    """One purchase that this process makes; `left`: credits of it that nobody waits for, but its own buyer's."""

    key: PaymentKey
    left: int
    done: asyncio.Event = field(default_factory=asyncio.Event)


class PayerProofs:
    """Payers' proofs at the gates of one process: what they are, and whose credits they spend."""

    def __init__(self, decisions: PurchaseDecisions, shown: ShownPayments) -> None:
        self._parts = decisions.parts
        self._shown = shown
        self._pending = decisions.pending
        self._under_way: dict[Place, list[_UnderWay]] = {}
        self._awaiting: Counter[str] = Counter()  # of claims that an earlier request left: how many wait for each

    async def look_at(
        self, opened: OpenGate, presented: PresentedPayment
    ) -> tuple[PayerProof | None, AuthorizationStanding | None]:
        """The payment as a proof, and how it stands where its payer holds a credit. Raises: as `standing`."""
        proof = await self.of(opened, presented)
        if proof is None or not await self.is_held(proof):
            return proof, None
        return proof, await self.standing(proof)

    async def of(self, opened: OpenGate, presented: PresentedPayment) -> PayerProof | None:
        """The payment as a proof; None where it is none. A contract wallet is asked at a node of this gateway's."""
        gate, offered, network = opened.gate, presented.offered, presented.key.network
        is_meant = presented.accepted is not None or (gate.payer_proof and NETWORKS[network].family is Family.EVM)
        if not is_meant or opened.is_deleted or network not in opened.offers:
            return None
        sees, now_ms = self._parts.evidence.covers(network), self._parts.clock_ms()
        if not (sees or self._parts.supported().is_ours) or not ends_soon(offered, now_ms // 1000):
            return None
        try:
            require_valid_now(presented.payment, now_ms // 1000)
            terms = terms_for(gate, opened.asset_on(network), offered, now_ms, opened.taken_by(presented))
            is_signed = offered.is_signed_by_key or (
                sees and await self._parts.evidence.on(network).accepts(presented.payment)
            )
            if not is_signed:
                return None
        except (ApiError, RpcUnavailable):
            return None  # whoever buys with it is told why not
        return PayerProof(presented, place_of(opened, presented.key), terms)

    async def is_known(self, key: PaymentKey) -> bool:
        """Tell whether the payment was claimed or shown before, here or at another gate."""
        return await self._shown.has(key)

    async def is_held(self, proof: PayerProof) -> bool:
        """Tell whether its payer holds a credit there."""
        return await self._shown.holds(proof.place, self._parts.clock_ms())

    async def is_held_by(self, shown: Purchase) -> bool:
        """Tell whether the payer of a payment that was shown before holds a credit where it was."""
        return await self._shown.holds(Place(shown.payer, shown.gate_id, shown.network), self._parts.clock_ms())

    async def standing(self, proof: PayerProof) -> AuthorizationStanding:
        """Tell how it stands on its chain. Raises: UNAVAILABLE where nobody says."""
        payment, offered = proof.presented.payment, proof.presented.offered
        if not self._parts.evidence.covers(offered.key.network):
            has_clock = offered.valid_before is not None
            blockhash = b"" if has_clock else read_transfer(payment.transacted).transaction.message.recent_blockhash
            standing = await self._parts.hub.standing(offered.key, encode_key(blockhash) if blockhash else "")
        else:
            try:
                standing = await self._parts.evidence.on(offered.key.network).standing(payment, offered.key)
            except RpcUnavailable as error:
                _LOG.warning("node_unusable", network=offered.key.network, reason=str(error))
                raise unavailable() from error
        if offered.valid_before is None:
            return standing
        return standing._replace(moment=min(standing.moment, self._parts.clock_ms() // 1000))

    async def spend(
        self, proof: PayerProof, standing: AuthorizationStanding, spend_request: SpendRequest
    ) -> SpendResult:
        """Spend a credit of its payer's: UNKNOWN where none is held any more, STALE where it is to be asked again."""
        return await self._shown.spend(
            proof.presented.offered,
            proof.terms,
            standing,
            spend_request,
            purchase_id=new_purchase_id(),
            now_ms=self._parts.clock_ms(),
        )

    # Purchases under way

    def begun(self, opened: OpenGate, presented: PresentedPayment) -> None:
        """Count an attempt to buy, until it `ended`. One that its payer's key did not sign may be a stranger's."""
        if presented.offered.is_signed_by_key:
            mine = _UnderWay(presented.key, opened.gate.credits - 1)
            self._under_way.setdefault(place_of(opened, presented.key), []).append(mine)

    def ended(self, opened: OpenGate, presented: PresentedPayment) -> None:
        """Wake who waits for it."""
        place = place_of(opened, presented.key)
        for one in [one for one in self._under_way.get(place, ()) if one.key == presented.key]:
            self._under_way[place].remove(one)
            one.done.set()
        if not self._under_way.get(place, True):
            del self._under_way[place]

    async def will_hold(self, place: Place, deadline: float) -> bool:
        """Wait for a purchase that leaves a credit to this call, until it is decided; False where there is none.

        It returns False in the same turn in which it was decided, so that who then buys is counted before anybody else
        looks. Raises: SETTLEMENT_PENDING where `deadline` (loop time) comes first.
        """
        if (one := self._free(place)) is not None:
            await self._until_done(one, deadline)
            return True
        claims = await self._shown.claims(place, self._parts.clock_ms() - _UNDER_WAY_MS)
        if (one := self._free(place)) is not None:
            await self._until_done(one, deadline)
            return True
        own = {one.key for one in self._under_way.get(place, ())}
        for claim in claims:
            if key_of(claim) not in own and self._awaiting[claim.id] < claim.credits - 1:
                await self._until_decided(claim, deadline)
                return True
        return False

    def _free(self, place: Place) -> _UnderWay | None:
        return next((one for one in self._under_way.get(place, ()) if one.left > 0), None)

    async def _until_done(self, one: _UnderWay, deadline: float) -> None:
        one.left -= 1
        try:
            async with asyncio.timeout_at(deadline):
                await one.done.wait()
        except TimeoutError:
            claim = await self._parts.purchases.by_payment(one.key)
            raise await self._pending.pending_now(one.key, claim) from None
        finally:
            one.left += 1

    async def _until_decided(self, claim: Purchase, deadline: float) -> None:
        self._awaiting[claim.id] += 1
        try:
            await self._pending.until_decided(claim, deadline, may_spend=False)
        finally:
            self._awaiting[claim.id] -= 1
            if not self._awaiting[claim.id]:
                del self._awaiting[claim.id]


def place_of(opened: OpenGate, key: PaymentKey) -> Place:
    """Return the place where the credits count that a payment buys, or spends."""
    return Place(key.payer, opened.gate.id, key.network)
