"""How a process reaches each network's nodes, by its settings (contract 1, 5.2, 5.3): the chain of each family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.chains.evm import EvmChain, EvmConfig
from tollkeeper.chains.solana import SolanaChain, SolanaConfig
from tollkeeper.core.networks import Family

if TYPE_CHECKING:
    from tollkeeper.settings import NetworkSettings, Settings


def evm_config(network: NetworkSettings, settings: Settings) -> EvmConfig:
    """The chain's own configuration of one network."""
    return EvmConfig(
        network=network.network,
        rpc_urls=network.rpc_urls,
        asset=network.network.usdc.address,
        token_name=network.asset_name or "",
        token_version=network.asset_version or "",
        depths=settings.depths,
        confirm_nodes=settings.confirm_nodes,
        gas_limit=settings.gas.gas_limit,
        gas_budget_per_hour=settings.gas.budget_per_hour,
        max_fee_per_gas_wei=settings.gas.max_fee_per_gas_wei,
        batcher=network.batcher or "",
        batch_queue_depth=settings.batching.queue_depth,
        batch_items_max=settings.batching.items_max,
        wallet_factories=network.wallet_factories,
        deploy_gas_limit=settings.gas.deploy_gas_limit,
    )


def solana_config(network: NetworkSettings, settings: Settings) -> SolanaConfig:
    """The same of a Solana network. What a deep outcome is on EVM networks is a finalized one here."""
    return SolanaConfig(
        network=network.network,
        rpc_urls=network.rpc_urls,
        asset=network.network.usdc.address,
        is_token_2022=network.is_token_2022,
        is_final_needed=settings.depths.blocks > 1,
        confirm_nodes=settings.confirm_nodes,
        compute_limit_max=settings.fee_payer.compute_limit_max,
        compute_price_max_micro_lamports=settings.fee_payer.compute_price_max_micro_lamports,
        fee_budget_per_hour_lamports=settings.fee_payer.budget_per_hour_lamports,
    )


def chain_of(network: NetworkSettings, settings: Settings) -> EvmChain | SolanaChain:
    """A network's chain, not opened yet."""
    if network.network.family is Family.EVM:
        return EvmChain(evm_config(network, settings))
    return SolanaChain(solana_config(network, settings))


def networks_of(settings: Settings, family: Family) -> list[NetworkSettings]:
    """The enabled networks of one family."""
    return [network for network in settings.networks.values() if network.network.family is family]
