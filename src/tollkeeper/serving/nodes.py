"""How a process reaches each network's nodes, by its settings (contract 1, 5.2, 5.3): the chain of each family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.evm.config import EvmConfig
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.networks import Family

if TYPE_CHECKING:
    from tollkeeper.settings.model import NetworkSettings, Settings


def evm_config(network: NetworkSettings, settings: Settings) -> EvmConfig:
    """The chain's own configuration of one network."""
    return EvmConfig(
        network=network.network,
        rpc_urls=network.rpc_urls,
        asset=network.network.usdc.address,
        token_name=network.asset_name or "",
        token_version=network.asset_version or "",
        depths=settings.depths.of(network.network),
        confirm_nodes=settings.confirm_nodes,
        gas_limit=settings.gas.gas_limit,
        gas_budget_per_hour=settings.gas.budget_per_hour,
        max_fee_per_gas_wei=settings.gas.max_fee_per_gas_wei,
        batcher=network.batcher or "",
        batch_queue_depth=settings.batch_queue_depth,
        wallet_factories=network.wallet_factories,
        min_value=settings.min_price_micro,
    )


def solana_config(network: NetworkSettings, settings: Settings) -> SolanaConfig:
    """The same of a Solana network. What a deep outcome is on EVM networks is a finalized one here."""
    return SolanaConfig(
        network=network.network,
        rpc_urls=network.rpc_urls,
        asset=network.network.usdc.address,
        is_token_2022=network.is_token_2022,
        is_final_needed=settings.depths.blocks > 1,
        depths=settings.depths.of(network.network),
        confirm_nodes=settings.confirm_nodes,
        fee_budget_per_hour_lamports=settings.gas.budget_per_hour_lamports,
        min_value=settings.min_price_micro,
    )


def config_of(network: NetworkSettings, settings: Settings) -> EvmConfig | SolanaConfig:
    """The configuration of a network's chain."""
    return (evm_config if network.network.family is Family.EVM else solana_config)(network, settings)


def chain_of(network: NetworkSettings, settings: Settings) -> EvmChain | SolanaChain:
    """A network's chain, not opened yet."""
    config = config_of(network, settings)
    return EvmChain(config) if isinstance(config, EvmConfig) else SolanaChain(config)
