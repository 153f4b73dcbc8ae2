"""A payment that reached a gate's address by another's transaction, honoured by hand, once (contract 4.3; A-08, A-09).

Granting it automatically would let a payer race two servers with one payment; whether it bought something elsewhere is
for the operator to know. The chain must show the very transfer, at the configured depth. The buyer's header is public
by then, so what is granted is spent by its credit token, which the operator hands over, or by a bearer of the payer.
The same order given again grants nothing more and shows the same token: the first answer may have been lost.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.purchases import SETTLEMENT_FAILED, Claim, PurchaseState, Terms, credit_token
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.gateway.evidence.nodes import payments_of, with_accounts
from tollkeeper.gateway.purchase.monitor import new_purchase_id
from tollkeeper.storage.ledger.first_purchase import Paid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.networks import Family
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.settlement.reconciliation import ChainPayment
    from tollkeeper.gateway.evidence.nodes import AnyChain
    from tollkeeper.storage.gateway.paygates import PayGates
    from tollkeeper.storage.ledger.purchase_rows import Purchase
    from tollkeeper.storage.ledger.purchases import Purchases

_NAMES: Final = "it is " + ", or ".join(row.transaction_words for row in FAMILIES.values())


@dataclass(frozen=True, slots=True)
class ManualGrants:
    """`chain_of` gives the node of a network, to be opened here; None where there is none."""

    paygates: PayGates
    purchases: Purchases
    chain_of: Callable[[str], AnyChain | None]
    token_keys: Sequence[bytes]

    async def honour(self, slug: str, transaction_hash: str, nonce: str | None) -> JsonObject:
        """Grant what the payment in that transaction bought; `nonce` says which, where there are several.

        `isRepeated` in what is told: this very order granted it before. Raises: INVALID_PARAMETER for what is no hash,
        NOT_FOUND, PAYMENT_INVALID, CONFLICT where it was granted otherwise; RpcUnavailable.
        """
        now_ms = clock_ms()
        gate = await self.paygates.by_slug(slug, now_ms)
        is_deleted = gate is None
        if gate is None:  # what was claimed before the delete is honoured all the same, and served once
            gate = await self.paygates.deleted_by_slug(slug, now_ms)
        if gate is None:
            raise ApiError(Code.NOT_FOUND, f"there is no PayGate {slug}")
        family, transaction_hash, nonce = _read(transaction_hash, nonce)
        fitting: list[ChainPayment] = []
        silent: dict[str, Exception] = {}
        for network in _networks(gate, family):
            try:
                fitting += await self._shown(transaction_hash, nonce, gate, network)
            except (ApiError, RpcUnavailable) as error:  # it may be on another one
                silent[network] = error
        if not fitting:
            raise _nothing_fits(gate, family, silent)
        if len(fitting) != 1:
            raise ApiError(Code.PAYMENT_INVALID, "several payments in that transaction fit: say which by its nonce")
        payment = fitting[0]
        if is_deleted:
            _require_due(await self.purchases.by_payment(payment.key), gate)
        return await self._grant(payment, gate, is_deleted=is_deleted)

    async def _shown(self, transaction_hash: str, nonce: str | None, gate: PayGate, network: str) -> list[ChainPayment]:
        """Find what in that transaction, on this network, is to be honoured. Raises: as `honour`."""
        chain = self.chain_of(network)
        if chain is None:
            raise ApiError(Code.INVALID_NETWORK, f"no node of {network} is configured: set its rpc_url")
        try:
            await chain.open()
            found = await payments_of(chain, transaction_hash)
            named = [one for one in found if nonce in {None, one.key.nonce}]
            fitting = [one for one in named if await self._fits(one, gate)]
            if not fitting and len(named) == 1:
                await self._require_unclaimed(named[0], gate)
            for one in fitting:
                known = await self.purchases.by_payment(one.key)
                if known is None or known.state is not PurchaseState.LIVE:  # what was granted stays so
                    await _require_own(chain, one)
        finally:
            await chain.close()
        return fitting

    async def _fits(self, payment: ChainPayment, gate: PayGate) -> bool:
        """Tell whether it pays what was claimed with it, or, if it never was, what the gate asks now."""
        purchase = await self.purchases.by_payment(payment.key)
        if purchase is None:
            return _reaches(payment, gate.pay_to_on(payment.key.network)) and payment.value >= gate.price_micro
        pay_to = await self.purchases.pay_to(purchase)
        return purchase.gate_id == gate.id and _reaches(payment, pay_to) and payment.value == purchase.value_micro

    async def _require_unclaimed(self, payment: ChainPayment, gate: PayGate) -> None:
        purchase = await self.purchases.by_payment(payment.key)
        if purchase is not None and purchase.gate_id != gate.id:
            raise ApiError(Code.CONFLICT, f"this payment was claimed at another PayGate, by purchase {purchase.id}")

    async def _grant(self, payment: ChainPayment, gate: PayGate, *, is_deleted: bool) -> JsonObject:
        network = payment.key.network
        terms = Terms(
            gate.id,
            gate.version,
            gate.price_micro,
            gate.credits,
            gate.pay_to_on(network) or "",  # of what was claimed on a network of before the claim's own terms hold
            network,
            gate.credits_expire_after_seconds,
        )
        honoured = await self.purchases.honour(
            payment.key,
            terms,
            purchase_id=new_purchase_id(),
            paid=Paid(payment.value, None, os.urandom(32)),  # no header is shown by a hash of nothing
            transaction_hash=payment.transaction_hash,
            now_ms=clock_ms(),
        )
        purchase = honoured.purchase
        if honoured.outcome is Claim.STALE or purchase is None:
            raise ApiError(Code.CONFLICT, "the PayGate was changed meanwhile: try again")
        if honoured.outcome is not Claim.WON and not honoured.was_honoured:
            raise ApiError(
                Code.CONFLICT, f"this payment is {purchase.state.value}: it was granted, or it is being settled"
            )
        return {
            "purchaseId": purchase.id,
            "slug": gate.slug,
            "payer": shown_address(purchase.payer),
            "paid": format_usdc(purchase.value_micro),
            "credits": _left(purchase, clock_ms(), is_deleted=is_deleted),
            "isRepeated": honoured.was_honoured,
            "transaction": payment.transaction_hash,
            "creditToken": credit_token(self.token_keys[0], purchase.id),
        }


def _require_due(purchase: Purchase | None, gate: PayGate) -> None:
    """Raises: NOT_FOUND for what this deleted gate cannot serve: never shown there, or its file is kept no more."""
    if purchase is None:
        raise ApiError(Code.NOT_FOUND, f"{gate.slug} was deleted, and this payment was not shown there before")
    is_nothing_kept = gate.file is None and not gate.target_url
    failed = purchase.state is PurchaseState.FAILED or purchase.failure == SETTLEMENT_FAILED
    if is_nothing_kept and failed:
        msg = f"{gate.slug} was deleted, and its file is kept no more: its seller has this payment, and may return it"
        raise ApiError(Code.NOT_FOUND, msg)


def _networks(gate: PayGate, family: Family) -> list[str]:
    """List this family's networks: the gate's own first; then others, where it may have been paid before an update."""
    own = [one.network for one in gate.recipients]
    return [name for name in dict.fromkeys([*own, *NETWORKS]) if NETWORKS[name].family is family]


def _nothing_fits(gate: PayGate, family: Family, silent: Mapping[str, Exception]) -> Exception:
    own = [one.network for one in gate.recipients if NETWORKS[one.network].family is family]
    away = [network for network, error in silent.items() if isinstance(error, RpcUnavailable)]
    if not own and away:
        return silent[away[0]]
    if not own:
        return ApiError(Code.INVALID_NETWORK, f"{gate.slug} is paid on no network that has such transactions")
    unasked = [silent[network] for network in own if network in silent]
    if unasked:
        return unasked[0]
    not_asked = f" ({', '.join(away)} could not be asked)" if away else ""
    return ApiError(
        Code.PAYMENT_INVALID,
        "the chain shows no payment of at least the price to that PayGate in this transaction, or not deep enough yet"
        + not_asked,
    )


def _left(purchase: Purchase, now_ms: int, *, is_deleted: bool) -> int:
    """Return how many calls may be spent of it; of a gate that was deleted one is due, where none was answered."""
    if purchase.expires_ms is not None and purchase.expires_ms <= now_ms:
        return 0
    return int(0 < purchase.remaining == purchase.granted) if is_deleted else purchase.remaining


def _read(transaction: str, nonce: str | None) -> tuple[Family, str, str | None]:
    """The family that a transaction's name is of, and both as they are kept. Raises: INVALID_PARAMETER."""
    named = [(family, row.transaction_name(transaction)) for family, row in FAMILIES.items()]
    family, name = next(((family, name) for family, name in named if name is not None), (None, ""))
    if family is None:
        raise ApiError(Code.INVALID_PARAMETER, f"{transaction[:80]!a} names no transaction: {_NAMES}")
    row, told = FAMILIES[family], None if nonce is None else nonce.lower()
    if told is not None and row.nonce_form.fullmatch(told) is None:
        raise ApiError(Code.INVALID_PARAMETER, f"{told[:80]!a} is not {row.nonce_words}")
    return family, name, told


async def _require_own(chain: AnyChain, payment: ChainPayment) -> None:
    """Whoever a wallet's account was signed away to gets what is paid there.

    Whose it was when it was paid counts, as the chain tells: he may have closed it since, and anybody can open it
    anew for the wallet. Raises: PAYMENT_INVALID; RpcUnavailable.
    """
    accounts = with_accounts(chain)
    if accounts is None:
        return
    if payment.holder:
        holder, when = accounts.configured_asset.held_by(payment.pay_to, payment.holder), "then"
    else:
        holder, when = await accounts.holder_of(payment.pay_to), "now"
    if not holder.is_its_own:
        whose = "is none that can be paid" if holder.wallet is None else f"belongs to {holder.wallet}"
        msg = f"the account that was paid, {payment.pay_to}, {whose} {when}, and not to the PayGate's wallet"
        raise ApiError(Code.PAYMENT_INVALID, msg)


def _reaches(payment: ChainPayment, wallet: str | None) -> bool:
    """Tell whether this wallet was paid, or an account of its own."""
    family = NETWORKS[payment.key.network].family
    return wallet is not None and payment.pay_to in FAMILIES[family].accounts_of(wallet, payment.key.asset)
