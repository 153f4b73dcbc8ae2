"""The questions that a gateway asks of a chain, by its family (contract 4.3, 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tollkeeper.chains.evm import payments
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.solana import SolanaChain
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.gateway.evidence.evm import EvmEvidence
from tollkeeper.gateway.evidence.solana import SolanaEvidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.settlement.reconciliation import ChainPayment
    from tollkeeper.gateway.evidence.port import PaymentEvidence

AnyChain: TypeAlias = EvmChain | SolanaChain


def evidence_of(chain: AnyChain, clock_ms: Callable[[], int]) -> PaymentEvidence:
    """Return what asks this chain of payments."""
    return EvmEvidence(chain, clock_ms) if isinstance(chain, EvmChain) else SolanaEvidence(chain, clock_ms)


async def payments_of(chain: AnyChain, transaction: str) -> list[ChainPayment]:
    """Read what one transaction carried out. Raises: RpcUnavailable."""
    if isinstance(chain, EvmChain):
        return await payments.payments_of(chain, transaction)
    return await solana_payments.payments_of(chain, transaction)
