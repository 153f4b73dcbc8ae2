"""A Solana network that the hub settles on, and what the endpoints ask of it (contract 5.1, 5.2; A-27 to A-32).

`hub.evm.account` has the same members in the same order: the endpoints know no family. A transaction is judged whole,
its signature too, before any node is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.solana.expiry_proof import standing_of
from tollkeeper.core.solana.rules import (
    FEE_PAYER_WITHOUT_MONEY,
    SolanaTransfer,
    chain_checks,
    payment_key,
    read_transfer,
    recipient_checks,
    requirement_checks,
    transaction_checks,
    transfer_of,
)
from tollkeeper.core.x402.verification import Check, Reason, minimum_checks
from tollkeeper.core.x402.version1 import SCHEME, Requirements
from tollkeeper.hub.refusals import nothing_moved, unavailable
from tollkeeper.hub.settlement.orders import SupportedAsset
from tollkeeper.hub.solana.signer import advertised

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.networks import Network
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.core.solana.rules import FeePolicy, SolanaAsset
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.hub.admission import Admission, FeeBudget
    from tollkeeper.hub.settlement.requests import RequestedPayment, RequestedTransfer
    from tollkeeper.hub.signer_pool import SignerPool
    from tollkeeper.hub.solana.signer import FeePayer


@dataclass(frozen=True, slots=True)
class SolanaAccount:
    """One network with the fee payers that settle on it, and what that may cost in an hour (in lamports)."""

    chain: SolanaChain
    signers: SignerPool[FeePayer]
    gas_budget: FeeBudget
    admission: Admission

    @property
    def policy(self) -> FeePolicy:
        """Bounds of what a transaction may make our fee payers pay."""
        return self.chain.config.policy(self.signers.addresses)

    @property
    def asset(self) -> SolanaAsset:
        """Asset of an open network."""
        return self.chain.require_asset()

    @property
    def caip_signers(self) -> tuple[str, list[str]]:
        """The pattern of networks that these fee payers are for, and who they are, as `/supported` shows them."""
        return "solana:*", list(self.signers.addresses)

    def kind(self, now_seconds: int) -> tuple[SupportedAsset, JsonObject]:
        """Return what `/supported` says of this network beside its name. The network must be open."""
        usdc = self.asset.network.usdc
        relayers = self.signers.relayers
        # What is left of one that runs low is for the 402s that name it.
        able = [one for one in relayers if not one.balance.is_low] or [one for one in relayers if one.can_pay()]
        with_money = [relayer.signer.address for relayer in able]
        shown = SupportedAsset(self.asset.address, NAME, usdc.symbol, usdc.decimals)
        if self.chain.config.is_token_2022:  # a payer's account is derived from it
            shown.token_program = self.asset.token_program
        return shown, {"feePayer": advertised(self.signers.addresses, now_seconds, with_money)}

    def static_checks(self, asked: RequestedPayment, now_seconds: int | None) -> Iterator[Check]:  # noqa: ARG002 - no clock here
        """Return every rule that needs no node, in order, the signature last of those about the transaction."""
        scheme, network = asked.requirements.scheme, asked.requirements.network
        yield Check("requirements.scheme", scheme == SCHEME, Reason.SCHEME, SCHEME, scheme)
        ours = _names(self.chain.network)
        yield Check("requirements.network", network in ours, Reason.NETWORK, ours, network)
        payload = asked.payment.transacted
        yield from transaction_checks(payload, self.asset, self.policy)
        transfer = transfer_of(payload)
        if transfer is not None:
            yield from requirement_checks(transfer, asked.requirements, self.asset, self.signers.addresses)
            yield from minimum_checks(transfer.value, self.chain.config.min_value, Reason.SVM_AMOUNT_LOW)

    async def authorized(self, payment: Payment) -> tuple[Payment, Check]:
        """Return the payment as it is, whose payer's signature was judged with the transaction."""
        payer = read_transfer(payment.transacted).payer
        return payment, Check("signature", ok=True, reason=Reason.SVM_SIGNATURE, expected=payer)

    def transfer_checks(self, asked: RequestedTransfer) -> Iterator[Check]:
        """Yield the checks that need no node: allow-listed mint, the whole transaction, what the caller says of it.

        They come in this order. Raises: INVALID_AMOUNT for a transfer of nothing, which would cost a fee all the same.
        """
        asset, payload = self.asset, asked.payment.transacted
        yield Check("asset", asked.asset == asset.address, Reason.REQUIREMENTS, asset.address, asked.asset)
        offered = transfer_of(payload)
        if offered is not None and offered.value == 0:
            raise nothing_moved("amount")
        yield from transaction_checks(payload, asset, self.policy)
        transfer = read_transfer(payload)
        yield asset.price_check(transfer.value, asked.amount or 0)
        yield from minimum_checks(transfer.value, self.chain.config.min_value, Reason.SVM_AMOUNT_LOW)
        yield from recipient_checks(transfer, asked.recipient or "", asset)

    def own_requirements(self, asked: RequestedTransfer) -> Requirements:
        """Return the requirements that a transfer meets: its own terms."""
        transfer = read_transfer(asked.payment.transacted)
        return Requirements(
            scheme=SCHEME,
            network=asked.payment.network,
            amount=transfer.value,
            asset=self.asset.address,
            pay_to=asked.recipient or "",
        )

    async def standing(self, key: PaymentKey, blockhash: str) -> AuthorizationStanding:  # noqa: ARG002 - the hub's record says it
        """Ask whether a transaction of this blockhash may be executed yet. Only our fee payer can have it done."""
        return await standing_of(self.chain.reader, blockhash)

    async def live_checks(self, asked: RequestedPayment, now_seconds: int) -> list[Check]:  # noqa: ARG002 - blocks count, no clock
        """Return the chain's checks of a payment that kept the other rules. Raises: UNAVAILABLE.

        There are none for a transaction that we would not sign, as where every check is explained: what a node says of
        a fee that is not ours, or that may be any, says nothing of our money.
        """
        payload = asked.payment.transacted
        if not all(check.ok for check in transaction_checks(payload, self.asset, self.policy)):
            return []
        transfer = read_transfer(payload)
        try:
            facts = await self.chain.state(transfer)
            if facts.error in FEE_PAYER_WITHOUT_MONEY:
                (held,) = await self.chain.balances([transfer.fee_payer])
                self.signers.of(transfer.fee_payer).balance.see(held, 1)
                raise self.without_money()
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        return list(chain_checks(transfer, self.asset, facts))

    def identified(self, payment: Payment) -> tuple[PaymentKey, SolanaTransfer]:
        """Return the payment's identity, and what is to be carried out."""
        transfer = read_transfer(payment.transacted)
        return payment_key(self.asset, transfer), transfer

    def without_money(self) -> ApiError:
        """Return the 503 for a payment whose fee payer cannot pay. What it holds is its balance's to tell."""
        return unavailable("the hub's fee payer has no money on this network")

    @property
    def obstacles(self) -> list[str]:
        """Obstacles that keep outcomes from being reported as the operator meant them to be."""
        return [] if self.chain.asset is None else self.chain.obstacles

    async def look_around(self) -> None:
        """Do nothing: a transaction carries one payment."""

    async def reach(self) -> None:
        """Ask a node anything. Raises: RpcUnavailable."""
        await self.chain.balances(self.signers.addresses[:1])

    async def see_money(self) -> None:
        """Look at the fee payers' money of an open network, also while nobody settles. Raises: RpcUnavailable."""
        if self.chain.asset is not None:
            self.signers.see_balances(await self.chain.balances(self.signers.addresses), 1)


NAME = "USD Coin"


def _names(network: Network) -> list[str]:
    return [network.name, network.v1_name]
