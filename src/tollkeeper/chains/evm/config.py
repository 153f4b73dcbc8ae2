"""How an EVM network is reached, and what a settlement may cost there (contract 5.2, 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tollkeeper.core.evm.signed_transactions import settlement_cap
from tollkeeper.core.limits import SETTLEMENTS_UNDER_WAY_MAX
from tollkeeper.core.settlement.states import Depths

if TYPE_CHECKING:
    from tollkeeper.core.networks import Network


@dataclass(frozen=True, slots=True)
class EvmConfig:
    """How to reach and use one EVM network.

    Empty `asset`, `token_name` and `token_version` mean the network's USDC and what the token says of itself; an empty
    `batcher` means its usual place. With a `batch_queue_depth` of 0 every settlement goes alone. `wallet_factories` may
    deploy payers' wallets, for `deploy_gas_limit` on top of a settlement's gas. What became of a payment is known once
    `confirm_nodes` nodes show it; 0 means two, where another one can be reached.
    """

    network: Network
    rpc_urls: tuple[str, ...]
    asset: str = ""
    token_name: str = ""
    token_version: str = ""
    depths: Depths = field(default_factory=Depths)
    watch_blocks: int = 128
    gas_limit: int = 150_000
    gas_budget_per_hour: int = 18_000_000_000
    max_fee_per_gas_wei: int = 50_000_000_000
    batcher: str = ""
    batch_queue_depth: int = 0
    batch_items_max: int = 20
    wallet_factories: tuple[str, ...] = ()
    deploy_gas_limit: int = 500_000
    timeout_seconds: float = 10.0
    confirm_nodes: int = 0
    settlements_max: int = SETTLEMENTS_UNDER_WAY_MAX
    min_value: int = 0  # of a payment, in base units: what moves less is not worth its gas

    @property
    def settlement_fee_cap_wei(self) -> int:
        """Most that a settlement may pay per gas.

        The rest of the cap is left to free a nonce that this did not pay for.
        """
        return settlement_cap(self.max_fee_per_gas_wei)

    def gas_of(self, *, deploys: bool) -> int:
        """Return the gas limit of a settlement that goes alone, and may deploy its payer's wallet first."""
        return self.gas_limit + (self.deploy_gas_limit if deploys else 0)
