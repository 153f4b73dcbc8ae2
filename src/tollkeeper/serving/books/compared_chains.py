"""Chains as the comparison of the books reads them, of either family: newest block, payments in blocks, sightings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tollkeeper.chains.evm import payments
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.serving.nodes import chain_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.core.settlement.reconciliation import ChainPayment
    from tollkeeper.settings.model import Settings


class EvmComparison:
    """An EVM network. `open`, `newest`, `payments` and `look` may raise RpcUnavailable."""

    day_blocks: Final = 43_200  # of Base

    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self.name = chain.network.name
        self.open, self.look, self.close = chain.open, chain.look, chain.close

    @property
    def asset(self) -> str:
        """The token's address, of an open chain."""
        return payments.asset_of(self._chain)

    async def newest(self) -> int:
        """Read the newest block that may be compared."""
        return (await self._chain.latest_block()).number

    async def payments(
        self,
        senders: Collection[str],  # noqa: ARG002 - whoever sent them is shown
        sold_to: Collection[str],  # noqa: ARG002 - are among the recipients
        recipients: Sequence[str],
        blocks: range,
    ) -> list[ChainPayment]:
        """Read at least those that `senders` sent to `recipients`, and those to `sold_to` whoever sent them."""
        return await payments.read_payments(self._chain, recipients, blocks)


class SolanaComparison:
    """The same of a Solana network."""

    day_blocks: Final = 216_000

    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain
        self.name = chain.network.name
        self.open, self.look, self.close = chain.open, chain.look, chain.close

    @property
    def asset(self) -> str:
        """The token's address, of an open chain."""
        return solana_payments.asset_of(self._chain).address

    async def newest(self) -> int:
        """Read the newest block that may be compared."""
        return await self._chain.reader.final_slot()

    async def payments(
        self, senders: Collection[str], sold_to: Collection[str], recipients: Sequence[str], blocks: range
    ) -> list[ChainPayment]:
        """Read the same."""
        return await solana_payments.read_payments(self._chain, sorted(senders), sorted(sold_to), recipients, blocks)


ComparedChain: TypeAlias = EvmComparison | SolanaComparison


def compared_chains(settings: Settings) -> list[ComparedChain]:
    """Every network of these settings that has a node."""
    chains = [chain_of(network, settings) for network in settings.networks.values() if network.rpc_urls]
    return [EvmComparison(one) if isinstance(one, EvmChain) else SolanaComparison(one) for one in chains]
