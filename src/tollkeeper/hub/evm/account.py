"""An EVM network that the hub settles on, and what the endpoints ask of it (contract 5.1, 5.2, 5.3).

`hub.solana.account` has the same members in the same order: the endpoints know no family. What a settlement is, is not
decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.evm.counterfactual import is_wrapped
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.x402.verification import (
    Check,
    Reason,
    chain_checks,
    deployed_check,
    judged_signature,
    minimum_checks,
    payment_key,
    requirement_checks,
    signature_check,
    time_checks,
    with_usual_v,
)
from tollkeeper.core.x402.version1 import SCHEME, EvmPayload, Requirements
from tollkeeper.hub.refusals import nothing_moved, unavailable, without_gas_money
from tollkeeper.hub.settlement.orders import SupportedAsset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.chains.evm.chain import EvmChain, Fees
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.core.x402.verification import EvmAsset
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.hub.admission import Admission, FeeBudget
    from tollkeeper.hub.evm.batch import BatchPlanner
    from tollkeeper.hub.evm.signer import NetworkSigner
    from tollkeeper.hub.settlement.requests import RequestedPayment, RequestedTransfer
    from tollkeeper.hub.signer_pool import SignerPool


@dataclass(frozen=True, slots=True)
class EvmAccount:
    """One network with the signers that settle on it, and what that may cost in an hour."""

    chain: EvmChain
    signers: SignerPool[NetworkSigner]
    gas_budget: FeeBudget
    admission: Admission
    planner: BatchPlanner

    @property
    def caller(self) -> str:
        """From whom a settlement is simulated: the token does not ask who carries an authorization out."""
        return self.signers.addresses[0]

    @property
    def caip_signers(self) -> tuple[str, list[str]]:
        """The pattern of networks that these signers are for, and who they are, as `/supported` shows them."""
        return "eip155:*", [checksum_address(address) for address in self.signers.addresses]

    def kind(self, now_seconds: int) -> tuple[SupportedAsset, JsonObject]:  # noqa: ARG002 - the same at any time
        """Return what `/supported` says of this network beside its name. The network must be open."""
        asset = self._asset
        usdc = asset.network.usdc
        shown = SupportedAsset(checksum_address(asset.address), asset.name, usdc.symbol, usdc.decimals)
        return shown, {"name": asset.name, "version": asset.version}

    @property
    def _asset(self) -> EvmAsset:
        return self.chain.require_asset()

    def static_checks(self, asked: RequestedPayment, now_seconds: int | None) -> Iterator[Check]:
        """Every rule of the family that needs no node, in order; those about time only where `now_seconds` is given.

        The signature is not among them: where the payer is a contract, only a node can say.
        """
        payload = asked.payment.authorized
        yield from requirement_checks(asked.payment, asked.requirements, self._asset)
        yield from minimum_checks(payload.authorization.value, self.chain.config.min_value, Reason.VALUE)
        if now_seconds is not None:
            yield from time_checks(payload, now_seconds)

    async def authorized(self, payment: Payment) -> tuple[Payment, Check]:
        """Return the payment with its signature as the token takes it, and the last rule that no simulation judges.

        Is its payer there, or deployed by a factory of ours, and did it sign? A node is asked only where its key did
        not. A payment must pass this before anything about it is told or begun: its identity says nothing of its
        signature. A payer that has code beside a key that signed is left to the simulation. Raises: UNAVAILABLE.
        """
        return await self._authorized(payment, *self._by_key(payment.authorized))

    async def _authorized(self, payment: Payment, payload: EvmPayload, by_key: Check) -> tuple[Payment, Check]:
        if by_key.ok:
            return replace(payment, payload=payload), by_key
        try:
            payload = await self._unwrapped(payload)
            deployed = deployed_check(payload, self.planner.factories)
            if not deployed.ok:
                return payment, deployed
            accepts = await self.chain.wallet_accepts(payload, self._asset)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        return replace(payment, payload=payload), judged_signature(by_key, accepts)

    def _by_key(self, payload: EvmPayload) -> tuple[EvmPayload, Check]:
        """Return the payload with `v` as the token takes it, and whether the payer's key signed."""
        spelled = with_usual_v(payload)
        by_key = signature_check(spelled, self._asset)
        # Of another signature, a wallet's own, every byte may have a meaning.
        return (spelled, by_key) if by_key.ok else (payload, signature_check(payload, self._asset))

    async def _unwrapped(self, payload: EvmPayload) -> EvmPayload:
        """Without the wrapper of ERC-6492, where it names no factory of ours and the wallet is there.

        Raises: RpcUnavailable.
        """
        if deployed_check(payload, self.planner.factories).ok or not is_wrapped(payload.signature):
            return payload
        return await self.chain.ready(payload)

    def transfer_checks(self, asked: RequestedTransfer) -> Iterator[Check]:
        """Yield the checks that need no node, in order: allow-listed asset, what the caller says of the transfer.

        Raises: INVALID_AMOUNT for a transfer of nothing, which would cost gas all the same.
        """
        payload, asset = asked.payment.authorized, self._asset
        yield Check("asset", asked.asset == asset.address, Reason.REQUIREMENTS, asset.address, asked.asset)
        authorization = payload.authorization
        if authorization.value == 0:
            raise nothing_moved("payload.authorization.value")
        yield from minimum_checks(authorization.value, self.chain.config.min_value, Reason.VALUE)
        if asked.amount is not None:
            signed = str(authorization.value)
            yield Check("amount", asked.amount == authorization.value, Reason.PAYLOAD, signed, str(asked.amount))
        if asked.recipient is not None:
            is_signed = asked.recipient == authorization.pay_to
            yield Check("recipient", is_signed, Reason.RECIPIENT, authorization.pay_to, asked.recipient)

    def own_requirements(self, asked: RequestedTransfer) -> Requirements:
        """Return the requirements that a transfer meets: its own terms."""
        authorization = asked.payment.authorized.authorization
        return Requirements(
            scheme=SCHEME,
            network=asked.payment.network,
            amount=authorization.value,
            asset=checksum_address(self._asset.address),
            pay_to=checksum_address(authorization.pay_to),
        )

    async def live_checks(self, asked: RequestedPayment, now_seconds: int) -> list[Check]:
        """Return the chain's checks of a payment that kept the other rules; none if it is not signed.

        Raises: UNAVAILABLE.
        """
        spelled, by_key = self._by_key(asked.payment.authorized)
        payment, signed = await self._authorized(asked.payment, spelled, by_key)
        deployed = deployed_check(payment.authorized, self.planner.factories)
        if not signed.ok:
            return [deployed, signed] if deployed.ok else [deployed]
        payload, asset = payment.authorized, self._asset
        if not by_key.ok:  # the signature may have come out of its wrapper
            by_key = signature_check(payload, asset)
        try:
            facts, block = await self.chain.state(payload, asset, self.caller, is_signed_by_key=by_key.ok)
            checks = list(chain_checks(payload, by_key, facts))
            if all(check.ok for check in checks):
                await self.fees(block.base_fee_wei)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        now_seconds = max(block.timestamp_seconds, now_seconds)
        late = [check for check in time_checks(payload, now_seconds) if not check.ok]
        return [deployed, *late, *checks]

    async def standing(self, key: PaymentKey, blockhash: str) -> AuthorizationStanding:  # noqa: ARG002 - Solana's
        """Ask whether the authorization is unused. Raises: RpcUnavailable."""
        return await self.chain.authorizations.unused(key.payer, key.nonce)

    async def fees(self, base_fee_wei: int) -> Fees:
        """Return what a settlement pays for its gas now, if a signer has the money for one more.

        Raises: UNAVAILABLE, RpcUnavailable.
        """
        fees = await self._seen(base_fee_wei)
        self.signers.require_money()
        return fees

    async def _seen(self, base_fee_wei: int) -> Fees:
        """Read the fees of now, and what each signer holds at them."""
        fees = await self.chain.fees(base_fee_wei)
        self.signers.see_balances(await self.chain.balances(self.signers.addresses), fees.max_fee_per_gas)
        return fees

    async def used_by(self, payment: Payment) -> str:
        """Return the transaction that used the payment up, for the buyer to look at; empty where it is not found."""
        authorization = payment.authorized.authorization
        try:
            use = await self.chain.authorizations.find_use(authorization.payer, authorization.nonce)
        except RpcUnavailable:
            return ""
        return "" if use is None else use.transaction_hash

    def identified(self, payment: Payment) -> tuple[PaymentKey, EvmPayload]:
        """Return the payment's identity, and what is to be carried out."""
        payload = payment.authorized
        return payment_key(self._asset, payload), payload

    def without_money(self) -> ApiError:
        """Return the 503 for a payment that no signer can pay for."""
        return without_gas_money()

    @property
    def obstacles(self) -> list[str]:
        """Obstacles that keep payments from being taken, or reported, as the operator meant them to be."""
        if self.chain.asset is None:
            return []
        return [*self.chain.obstacles, *self.planner.obstacles]

    async def look_around(self) -> None:
        """Look for what the open network offers beyond what settling needs. Raises: RpcUnavailable."""
        await self.planner.look(self.chain)

    async def reach(self) -> None:
        """Ask a node anything. Raises: RpcUnavailable."""
        await self.chain.authorizations.nonce_of(self.caller, "latest")

    async def see_money(self) -> None:
        """Look at the signers' money of an open network, also while nobody settles. Raises: RpcUnavailable."""
        if self.chain.asset is not None:
            await self._seen((await self.chain.latest_block()).base_fee_wei)
