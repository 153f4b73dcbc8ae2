"""Networks, their families, names and USDC assets (specification 2.4, contract 1; values of the x402 ecosystem).

A network has one name inside the program: the specification's. Aliases are normalised once, on input; `v1_name`
and `caip2` are what clients of x402's two versions know, and stand on their wires alone.

Decimal USDC to integer micro-units and back, exactly (specification 2.1 price, 2.3 value; contract 3.1).

The only place that knows how many micro-units a USDC has. Nothing is ever rounded: what cannot be exact is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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


MICRO_PER_USDC: Final = 1_000_000
_DECIMALS: Final = 6
_PRICE: Final = re.compile(r"(0|[1-9][0-9]{0,11})(?:\.([0-9]{1,6}))?", re.ASCII)


def parse_usdc(text: object, *, field: str = "price") -> int:
    """Micro-units of a decimal USDC text such as `0.01`; above zero, at most 12 digits before and 6 after the point.

    Raises: INVALID_AMOUNT.
    """
    match = _PRICE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ApiError(
            Code.INVALID_AMOUNT,
            f"{field} must be a decimal USDC amount such as 0.01, with at most 6 decimals",
            details={"field": field},
        )
    micro = int(match[1]) * MICRO_PER_USDC + int((match[2] or "").ljust(_DECIMALS, "0"))
    if micro == 0:
        raise ApiError(Code.INVALID_AMOUNT, f"{field} must be above zero", details={"field": field})
    return micro


def format_usdc(micro: int) -> str:
    """The shortest decimal USDC text of `micro` micro-units: 10000 is `0.01`, 2000000 is `2`."""
    whole, rest = divmod(micro, MICRO_PER_USDC)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)
