"""Questions to a node: has a wallet a token account, and whose is one (contract 3.1, 8; spec 2.3).

So it is asked on networks where what a wallet holds lies in accounts of their own: Solana's.

A payment goes to the wallet's associated token account, which must be there before. The owner of a gate is told when it
is not, where a node is set that answers in time and has the facilitator's mint. A save does not fail by it: the account
may be made later, and until then buyers are refused and not charged. What is no wallet is told as well, as far as the
address shows it by itself; what a node shows to be a token account, a mint or a program is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.solana.programs import Holder, NoWallet

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.fields import Recipient
    from tollkeeper.core.payment_offers import Asset

WAIT_SECONDS: Final = 2.0
_LOG = structlog.get_logger("tollkeeper.gateway.evidence.token_accounts")


@dataclass(frozen=True, slots=True)
class TokenAccounts:
    """The nodes that this gateway may ask, by network."""

    chains: Mapping[str, SolanaChain]

    async def warnings(
        self, recipients: Sequence[Recipient], assets: Mapping[str, Asset], known: Collection[Recipient] = ()
    ) -> list[JsonObject]:
        """Tell what a gate's owner should know of its recipients, the gate's own network first.

        Raises: INVALID_ADDRESS for one that can never be paid; of those `known` that is a warning too, so that the gate
        can still be changed.
        """
        found = await asyncio.gather(*(self._judged(one, assets.get(one.network)) for one in recipients))
        warnings = []
        for position, (one, (obstacle, holder)) in enumerate(zip(recipients, found, strict=True)):
            place = {"field": "accepts" if position else "paymentAddress", "network": one.network}
            if obstacle is not None and obstacle.is_never_paid and one not in known:
                message = f"{one.payment_address} is no wallet and can never be paid: {obstacle.why}"
                raise ApiError(Code.INVALID_ADDRESS, message, details=place)
            if obstacle is not None or not holder.is_its_own or holder.spender is not None:
                warnings.append({**place, "message": _warning(one, obstacle, holder)})
        return warnings

    async def _judged(self, recipient: Recipient, asset: Asset | None) -> tuple[NoWallet | None, Holder]:
        """Return why it is no wallet, and who holds its token account: itself, unless a node says another or none."""
        address = recipient.payment_address
        if asset is None or not asset.has_accounts:
            return None, Holder(address, is_its_own=True)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                chain = await self._chain(asset)
                return await chain.recipient(address, asset.account_of(address))
        except (RpcUnavailable, TimeoutError) as error:
            if recipient.network in self.chains:
                _LOG.info("token_account_not_seen", network=recipient.network, reason=str(error))
            why = asset.no_wallet(address)
            return (NoWallet(why, is_never_paid=False) if why else None), Holder(address, is_its_own=True)

    async def blockhash(self, asset: Asset) -> str:
        """Return a new transaction's blockhash. Raises: RpcUnavailable, also if no node is set."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await (await self._chain(asset)).blockhash()
        except TimeoutError as error:
            raise RpcUnavailable("the node does not answer") from error

    async def owner(self, account: str, asset: Asset) -> str | None:
        """Return the token account's owner; None where there is none. Raises: RpcUnavailable, also with no node set."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return (await (await self._chain(asset)).holder_of(account)).wallet
        except TimeoutError as error:
            raise RpcUnavailable("the node does not answer") from error

    async def _chain(self, asset: Asset) -> SolanaChain:
        chain = self.chains.get(asset.network.name)
        if chain is not None and chain.asset is None:
            await chain.open()
        if chain is None or chain.asset is None or chain.asset.address != asset.address:
            raise RpcUnavailable("no node of this network and mint can be asked")
        return chain

    async def aclose(self) -> None:
        """End the connections."""
        for chain in self.chains.values():
            await chain.close()


def _warning(recipient: Recipient, obstacle: NoWallet | None, holder: Holder) -> str:
    address, network = recipient.payment_address, recipient.network
    without = f"no USDC token account on {network}"
    if holder.wallet is not None and not holder.is_its_own:  # an account's owner can sign it away, or be made to
        return (
            f"the USDC token account of {address} on {network} belongs to {holder.wallet}, who gets what is paid "
            "there: name another wallet"
        )
    if obstacle is None and holder.spender is not None:
        return (
            f"{holder.spender} may spend from the USDC token account of {address} on {network}, so what is paid there "
            "too: if its owner does not know why, revoke that, or name another wallet"
        )
    if obstacle is None:
        return (
            f"{address} has {without} yet: until it has one nobody can pay this PayGate there. Its first USDC makes "
            "one, or its owner does in a wallet"
        )
    unpaid = f". It has {without}, so nobody can pay this PayGate there: name a wallet" if holder.wallet is None else ""
    return f"{address} is no wallet: {obstacle.why}{unpaid}"
