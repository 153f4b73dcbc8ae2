"""The questions that a gateway asks of a chain, by its family: one row each (contract 4.3, 4.4)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tollkeeper.chains.evm import payments
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.solana import SolanaChain
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.core.networks import Family
from tollkeeper.gateway.evidence.evm import EvmEvidence
from tollkeeper.gateway.evidence.solana import SolanaEvidence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tollkeeper.core.settlement.reconciliation import ChainPayment
    from tollkeeper.gateway.evidence.port import PaymentEvidence

AnyChain: TypeAlias = EvmChain | SolanaChain


class ChainRow(NamedTuple):
    """`evidence` of a chain and a clock in Unix milliseconds; `payments_of` a chain and a transaction's name."""

    evidence: Callable[[Any, Callable[[], int]], PaymentEvidence]
    payments_of: Callable[[Any, str], Awaitable[list[ChainPayment]]]


_ROWS: Final[Mapping[Family, ChainRow]] = MappingProxyType(
    {
        Family.EVM: ChainRow(EvmEvidence, payments.payments_of),
        Family.SOLANA: ChainRow(SolanaEvidence, solana_payments.payments_of),
    }
)


def evidence_of(chain: AnyChain, clock_ms: Callable[[], int]) -> PaymentEvidence:
    """Ask this chain of payments."""
    return _ROWS[chain.network.family].evidence(chain, clock_ms)


async def payments_of(chain: AnyChain, transaction: str) -> list[ChainPayment]:
    """Read what one transaction carried out. Raises: RpcUnavailable."""
    return await _ROWS[chain.network.family].payments_of(chain, transaction)
