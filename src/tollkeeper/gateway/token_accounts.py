"""What a gateway asks a node: has a wallet a token account, and whose is one (contract 3.1, 8; spec 2.3).

So it is asked on networks where what a wallet holds lies in accounts of their own: Solana's.

A payment goes to the wallet's associated token account, which must be there before. The owner of a gate is told when it
is not, where a node is set that answers in time and has the facilitator's mint. A save never fails by it: the account
may be made later, and until then buyers are refused and not charged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import structlog

from tollkeeper.chains.rpc import RpcUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.core.paygate_fields import Recipient
    from tollkeeper.core.tenders import Asset

WAIT_SECONDS: Final = 2.0
_LOG = structlog.get_logger("tollkeeper.gateway.token_accounts")


@runtime_checkable
class AccountChain(Protocol):
    """A network's nodes that know whose an account is."""

    @property
    def asset(self) -> Asset | None:
        """The token, once a node has said who it is."""

    async def open(self) -> None:
        """Asks the nodes who they are. Raises: RpcUnavailable."""

    async def owner_of(self, account: str) -> str | None:
        """The wallet; None where there is no such account of the token. Raises: RpcUnavailable."""

    async def close(self) -> None:
        """Ends the connections."""


@dataclass(frozen=True, slots=True)
class TokenAccounts:
    """The nodes that this gateway may ask, by network."""

    chains: Mapping[str, AccountChain]

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
        if asset is None or not asset.has_accounts or recipient.network not in self.chains:
            return False
        try:
            return await self._owner(asset.account_of(recipient.payment_address), asset) is None
        except RpcUnavailable as error:
            _LOG.info("token_account_not_seen", network=recipient.network, reason=str(error))
            return False

    async def owner(self, account: str, asset: Asset) -> str | None:
        """Whose the token account is; None where there is none. Raises: RpcUnavailable, also where no node is set."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._owner(account, asset)
        except TimeoutError as error:
            msg = "the node does not answer"
            raise RpcUnavailable(msg) from error

    async def _owner(self, account: str, asset: Asset) -> str | None:
        chain = self.chains.get(asset.network.name)
        if chain is not None and chain.asset is None:
            await chain.open()
        if chain is None or chain.asset is None or chain.asset.address != asset.address:
            msg = "no node of this network and mint can be asked"
            raise RpcUnavailable(msg)
        return await chain.owner_of(account)

    async def aclose(self) -> None:
        """Ends the connections."""
        for chain in self.chains.values():
            await chain.close()
