"""What a gateway asks of a chain, by its family: one row each (contract 4.3, 4.4).

How a payment is proved is in `evm_findings` and `solana_findings`, when in `chain_proofs`; what one transaction carried
out is read in `chains`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from tollkeeper.chains import payments
from tollkeeper.chains.evm import EvmChain
from tollkeeper.chains.solana import SolanaChain
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.core.networks import Family
from tollkeeper.gateway.evm_findings import EvmFindings
from tollkeeper.gateway.solana_findings import SolanaFindings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tollkeeper.core.reconciliation import ChainPayment
    from tollkeeper.core.wire import Payment
    from tollkeeper.gateway.findings import Finding, Owed
    from tollkeeper.gateway.hub_client import Senders

AnyChain: TypeAlias = EvmChain | SolanaChain


class Findings(Protocol):
    """What one chain shows of payments."""

    async def find(self, owed: Owed, named: str, senders: Senders) -> Finding:
        """What it shows of this one now; `named` as in `ChainProofs.find`. Raises: RpcUnavailable."""

    async def find_use(self, owed: Owed, payment: Payment) -> Finding | None:
        """FOREIGN where somebody has used it by now; FAILED where it is so old that this is not seen any more.

        FAILED too where its recipient would not get it; else NOTHING. None where that is not clear. Raises: as `find`.
        """

    async def is_signed(self, payment: Payment) -> bool:
        """Did its payer sign it, by his key or by what his code says? Raises: RpcUnavailable."""


class ChainRow(NamedTuple):
    """`findings` of a chain and a clock in Unix milliseconds; `payments_of` a chain and a transaction's name."""

    findings: Callable[[Any, Callable[[], int]], Findings]
    payments_of: Callable[[Any, str], Awaitable[list[ChainPayment]]]


_ROWS: Final[Mapping[Family, ChainRow]] = MappingProxyType(
    {
        Family.EVM: ChainRow(EvmFindings, payments.payments_of),
        Family.SOLANA: ChainRow(SolanaFindings, solana_payments.payments_of),
    }
)


def findings_of(chain: AnyChain, clock_ms: Callable[[], int]) -> Findings:
    """What the chain shows of payments."""
    return _ROWS[chain.network.family].findings(chain, clock_ms)


async def payments_of(chain: AnyChain, transaction: str) -> list[ChainPayment]:
    """What one transaction carried out. Raises: RpcUnavailable."""
    return await _ROWS[chain.network.family].payments_of(chain, transaction)
