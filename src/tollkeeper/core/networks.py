"""Networks, their families, names and USDC assets (specification 2.4, contract 1; values of the x402 ecosystem).

A network has one name inside the program: the specification's. Aliases are normalised once, on input; `v1_name`
and `caip2` are what clients of x402's two versions know, and stand on their wires alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from tollkeeper.core.api.errors import ApiError, Code


class Family(StrEnum):
    """Wallet and transaction format."""

    EVM = "evm"
    SOLANA = "solana"


@dataclass(frozen=True, slots=True)
class Asset:
    """A stablecoin on one network. `address` is the contract (lower case) or the mint; amounts have `decimals`.

    `eip712_name` is what the canonical deployment signs under; the token itself, asked at a node, stands above it.
    """

    address: str
    eip712_name: str = ""
    symbol: str = "USDC"
    decimals: int = 6


@dataclass(frozen=True, slots=True)
class Network:
    """One row of specification 2.4. `chain_id` is None on Solana; `is_test` tells play money from real.

    `explorer` is the page of a transaction there; `public_node` is for wallets that do not know the network.
    """

    name: str
    family: Family
    chain_id: int | None
    v1_name: str
    is_test: bool
    usdc: Asset
    label: str  # its name for people
    explorer: str
    public_node: str | None = None
    genesis_hash: str = ""  # by which Solana's clusters are told apart
    cluster: str = ""  # what wallets there call it
    depth_steps: tuple[tuple[int, int], ...] = ()  # from so many base units on, so many confirmations, unless set

    @property
    def caip2(self) -> str:
        """Name that x402 version 2 writes (CAIP-2)."""
        if self.family is Family.EVM:
            return f"eip155:{self.chain_id}"
        return f"solana:{self.genesis_hash[:32]}"


NETWORKS: Final[dict[str, Network]] = {
    network.name: network
    for network in (
        Network(
            "base",
            Family.EVM,
            8453,
            "base",
            is_test=False,
            usdc=Asset("0x833589fcd6edb6e08f4c7c32d4f71b54bda02913", "USD Coin"),
            label="Base",
            explorer="https://basescan.org/tx/{}",
            public_node="https://mainnet.base.org",
            depth_steps=((100_000_000, 3), (1_000_000_000, 10)),
        ),
        Network(
            "base-sepolia",
            Family.EVM,
            84532,
            "base-sepolia",
            is_test=True,
            usdc=Asset("0x036cbd53842c5426634e7929541ec2318f3dcf7e", "USDC"),
            label="Base Sepolia (test money)",
            explorer="https://sepolia.basescan.org/tx/{}",
            public_node="https://sepolia.base.org",
        ),
        Network(
            "solana-mainnet",
            Family.SOLANA,
            None,
            "solana",
            is_test=False,
            usdc=Asset("EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"),
            label="Solana",
            explorer="https://explorer.solana.com/tx/{}",
            genesis_hash="5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d",
            cluster="mainnet",
            depth_steps=((100_000_000, 2),),
        ),
        Network(
            "solana-devnet",
            Family.SOLANA,
            None,
            "solana-devnet",
            is_test=True,
            usdc=Asset("4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"),
            label="Solana devnet (test money)",
            explorer="https://explorer.solana.com/tx/{}?cluster=devnet",
            genesis_hash="EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG",
            cluster="devnet",
        ),
    )
}

ALIASES: Final[dict[str, str]] = {"base-mainnet": "base", "solana": "solana-mainnet"}
CAIP2_NAMES: Final[dict[str, str]] = {network.caip2: network.name for network in NETWORKS.values()}

# The names in bodies of the API, as types: as they are answered, as they may be asked, as version 2 has them.
NetworkName: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": sorted(NETWORKS)})]
NetworkAsked: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": sorted({*NETWORKS, *ALIASES})})]
Caip2Network: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": sorted(CAIP2_NAMES)})]


def normalise(name: object) -> Network:
    """The network that `name` (one of specification 2.4's names or an alias) means.

    Raises: INVALID_NETWORK.
    """
    if isinstance(name, str):
        network = NETWORKS.get(ALIASES.get(name, name))
        if network is not None:
            return network
    raise ApiError(
        Code.INVALID_NETWORK, "network is not supported", details={"field": "network", "supported": sorted(NETWORKS)}
    )
