"""Chains as the comparison of the books reads them, of either family: newest block, payments in blocks, sightings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tollkeeper.chains.evm import payments
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.serving.nodes import chain_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.chains.sightings import Expected, Sighting
    from tollkeeper.chains.solana import SolanaChain
    from tollkeeper.core.settlement.reconciliation import ChainPayment
    from tollkeeper.settings import Settings


class ComparedChain(Protocol):
    """One network. Everything may raise RpcUnavailable."""

    @property
    def name(self) -> str:
        """The network's."""

    @property
    def day_blocks(self) -> int:
        """About so many blocks make a day."""

    @property
    def asset(self) -> str:
        """The token's address, of an open chain."""

    async def open(self) -> None:
        """Asks the node who it is."""

    async def newest(self) -> int:
        """The newest block that may be compared."""

    async def payments(
        self, senders: Collection[str], sold_to: Collection[str], recipients: Sequence[str], blocks: range
    ) -> list[ChainPayment]:
        """At least those that `senders` sent to `recipients`, and those to `sold_to` whoever sent them."""

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """Return what the chain shows of these transactions."""

    async def close(self) -> None:
        """Ends the connections."""


class _EvmComparison:
    day_blocks: Final = 43_200  # of Base

    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self.name = chain.network.name
        self.open, self.look, self.close = chain.open, chain.look, chain.close

    @property
    def asset(self) -> str:
        return payments.asset_of(self._chain)

    async def newest(self) -> int:
        return (await self._chain.latest_block()).number

    async def payments(
        self,
        senders: Collection[str],  # noqa: ARG002 - whoever sent them is shown
        sold_to: Collection[str],  # noqa: ARG002 - are among the recipients
        recipients: Sequence[str],
        blocks: range,
    ) -> list[ChainPayment]:
        return await payments.read_payments(self._chain, recipients, blocks)


class _SolanaComparison:
    day_blocks: Final = 216_000

    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain
        self.name = chain.network.name
        self.open, self.look, self.close = chain.open, chain.look, chain.close

    @property
    def asset(self) -> str:
        return solana_payments.asset_of(self._chain).address

    async def newest(self) -> int:
        return await self._chain.reader.final_slot()

    async def payments(
        self, senders: Collection[str], sold_to: Collection[str], recipients: Sequence[str], blocks: range
    ) -> list[ChainPayment]:
        return await solana_payments.read_payments(self._chain, sorted(senders), sorted(sold_to), recipients, blocks)


def compared_chains(settings: Settings) -> list[ComparedChain]:
    """Every network of these settings that has a node."""
    chains = [chain_of(network, settings) for network in settings.networks.values() if network.rpc_urls]
    return [_EvmComparison(one) if isinstance(one, EvmChain) else _SolanaComparison(one) for one in chains]
