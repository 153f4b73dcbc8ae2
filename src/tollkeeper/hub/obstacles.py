"""Obstacles that a network's nodes put in the way of settlements, for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tollkeeper.chains.evm.chain import EvmChain
    from tollkeeper.chains.solana import SolanaChain


def node_obstacles(chain: EvmChain | SolanaChain) -> list[str]:
    """Say of an open chain's nodes that too few of them answer, and what they were learned not to do."""
    missing, needed = chain.missing_nodes, chain.config.confirm_nodes
    if not missing:
        return chain.limits
    if needed:
        return [
            f"settlements are told once {needed} nodes show them, and {missing} of them too few answer",
            *chain.limits,
        ]
    return ["one node's word is taken for settlements, because none of the others answers", *chain.limits]
