"""How a Solana network is reached, and what a settlement costs there (contract 5.2, 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import SETTLEMENTS_UNDER_WAY_MAX
from tollkeeper.core.settlement.states import Depths
from tollkeeper.core.solana.programs import (
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    read_compute_unit_limit,
    read_compute_unit_price,
)
from tollkeeper.core.solana.rules import FeePolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.networks import Network
    from tollkeeper.core.solana.rules import SolanaTransfer

LAMPORTS_PER_SIGNATURE: Final = 5_000
RENT_EXEMPT_LAMPORTS: Final = 890_880  # without so much an account that holds nothing else pays no fee
_SIGNATURES: Final = 2
_MICRO_LAMPORTS: Final = 10**6


@dataclass(frozen=True, slots=True)
class SolanaConfig:
    """How to reach and use one Solana network. An empty `asset` means the network's USDC.

    `is_token_2022`: the asset belongs to that program, and not to SPL Token.
    `is_final_needed`: an outcome stands once it is finalized (about 13 s), not once it is confirmed (about 1 s), each
    time once `confirm_nodes` nodes show it; 0 means two, where another one can be reached.
    The budget is what fees may cost in an hour, in lamports.
    """

    network: Network
    rpc_urls: tuple[str, ...]
    asset: str = ""
    is_token_2022: bool = False
    is_final_needed: bool = False
    confirm_nodes: int = 0
    depths: Depths = field(default_factory=Depths)  # of an amount whose depth is above 1 an outcome is final, too
    compute_limit_max: int = 400_000
    compute_price_max_micro_lamports: int = 100_000
    fee_budget_per_hour_lamports: int = 2_000_000_000
    settlements_max: int = SETTLEMENTS_UNDER_WAY_MAX
    min_value: int = 0  # of a payment, in base units: what moves less is not worth its fee
    timeout_seconds: float = 10.0

    @property
    def token_program(self) -> str:
        """The program that the asset belongs to."""
        return TOKEN_2022_PROGRAM if self.is_token_2022 else TOKEN_PROGRAM

    @property
    def fee_max_lamports(self) -> int:
        """Most that one settlement costs."""
        return _fee_lamports(self.compute_limit_max, self.compute_price_max_micro_lamports)

    def policy(self, fee_payers: Sequence[str]) -> FeePolicy:
        """Return the bounds of what a transaction may make these fee payers pay."""
        return FeePolicy(tuple(fee_payers), self.compute_limit_max, self.compute_price_max_micro_lamports)


def fee_lamports(transfer: SolanaTransfer) -> int:
    """Return the exact fee of a transaction that kept every rule. The fee payer pays it whether it passes or fails."""
    first, second = transfer.transaction.message.instructions[:2]
    limit, price = read_compute_unit_limit(first), read_compute_unit_price(second)
    assert limit is not None and price is not None  # noqa: S101, PT018 - the rules ask for both
    return _fee_lamports(limit, price)


def _fee_lamports(compute_limit: int, price_micro_lamports: int) -> int:
    return _SIGNATURES * LAMPORTS_PER_SIGNATURE + -(-compute_limit * price_micro_lamports // _MICRO_LAMPORTS)
