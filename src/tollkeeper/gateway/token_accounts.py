"""A word to the owner whose Solana wallet cannot be paid yet, when a gate is saved (contract 3.1; specification 2.3).

A payment goes to the wallet's associated token account, which must be there before. Whether it is only a node can say,
so nothing is said where none is set, where it does not answer in time, or where the facilitator has another mint. A
save never fails by it: the account may be made later, and until then buyers are refused and not charged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.solana import SolanaAsset
from tollkeeper.core.solana_programs import associated_token_account

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.chains.solana import SolanaChain
    from tollkeeper.core.paygate_fields import Recipient
    from tollkeeper.core.tenders import Asset

WAIT_SECONDS: Final = 2.0
_LOG = structlog.get_logger("tollkeeper.gateway.token_accounts")


@dataclass(frozen=True, slots=True)
class TokenAccounts:
    """The nodes of Solana networks that this gateway may ask, by network."""

    chains: Mapping[str, SolanaChain]

    async def warnings(self, recipients: Sequence[Recipient], assets: Mapping[str, Asset]) -> list[dict[str, Any]]:
        """What a gate's owner should know of its recipients, the gate's own network first."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                missing = await asyncio.gather(*(self._is_missing(one, assets.get(one.network)) for one in recipients))
        except TimeoutError:
            return []
        return [
            {
                "field": "accepts" if position else "paymentAddress",
                "network": one.network,
                "message": (
                    f"{one.payment_address} has no USDC token account on {one.network} yet: until it has one nobody "
                    "can pay this PayGate there. Its first USDC makes one, or its owner does in a wallet"
                ),
            }
            for position, (one, is_missing) in enumerate(zip(recipients, missing, strict=True))
            if is_missing
        ]

    async def _is_missing(self, recipient: Recipient, asset: Asset | None) -> bool:
        chain = self.chains.get(recipient.network)
        if chain is None or not isinstance(asset, SolanaAsset):
            return False
        account = associated_token_account(recipient.payment_address, asset.address, asset.token_program)
        try:
            if chain.asset is None:
                await chain.open()
            if chain.asset is None or chain.asset.address != asset.address:
                return False
            return not await chain.has_token_account(account)
        except RpcUnavailable as error:
            _LOG.info("token_account_not_seen", network=recipient.network, reason=str(error))
            return False

    async def aclose(self) -> None:
        """Ends the connections."""
        for chain in self.chains.values():
            await chain.close()
