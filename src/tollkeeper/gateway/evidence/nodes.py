"""The nodes of a gateway whose facilitator is not ours, and when its answer is enough (contract 4.3, 4.4).

Such a facilitator knows neither keys nor status. Without `confirm` its success counts once the chain shows it, unless
the gate trusts it; a refusal counts where its reason comes before anything is sent. Whatever else it says is looked
for on the chain. Nothing is written down here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from tollkeeper.chains.evm import payments
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.core.x402.verification import BEFORE_SENDING
from tollkeeper.gateway.evidence.evm import EvmEvidence
from tollkeeper.gateway.evidence.port import NOT_SEEN, UNUSED, EvidenceOutcome
from tollkeeper.gateway.evidence.solana import SolanaEvidence
from tollkeeper.gateway.facilitator.client import SettleAnswer, SettleMeaning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from tollkeeper.core.payment_offers import Asset
    from tollkeeper.core.settlement.reconciliation import ChainPayment
    from tollkeeper.gateway.evidence.port import ExpectedTransfer, PaymentEvidence, PaymentFinding
    from tollkeeper.gateway.facilitator.client import Supported

# The questions that a gateway asks of a chain, by its family (contract 4.3, 4.4).

AnyChain: TypeAlias = EvmChain | SolanaChain


def with_accounts(chain: AnyChain | None) -> SolanaChain | None:
    """Return a chain whose wallets hold a token in accounts of their own; None for another one."""
    return chain if isinstance(chain, SolanaChain) else None


async def payments_of(chain: AnyChain, transaction: str) -> list[ChainPayment]:
    """Read what one transaction carried out. Raises: RpcUnavailable."""
    if isinstance(chain, EvmChain):
        return await payments.payments_of(chain, transaction)
    return await solana_payments.payments_of(chain, transaction)


OPEN_AGAIN_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 2.0
_LOOK_AGAIN_SECONDS: Final = 0.25
_WAIT_SECONDS: Final = 30.0
_LOG = structlog.get_logger("tollkeeper.gateway.evidence")


class EvidenceNodes:
    """The nodes by network. Without nodes they cover nothing. `asked`: every node was asked once who it is."""

    def __init__(self, chains: Mapping[str, AnyChain]) -> None:
        self._chains = chains
        self._evidence: dict[str, PaymentEvidence] = {
            name: EvmEvidence(chain) if isinstance(chain, EvmChain) else SolanaEvidence(chain)
            for name, chain in chains.items()
        }
        self.asked = asyncio.Event()

    def covers(self, network: str) -> bool:
        """Say whether a node is configured for the network."""
        return network in self._chains

    def problem(self, network: str) -> str:
        """Return why the network's node cannot be asked now; empty when it can."""
        return "" if self._chains[network].asset is not None else self._chains[network].problem

    @property
    def is_open(self) -> bool:
        """Every node has said who it is."""
        return all(chain.asset is not None for chain in self._chains.values())

    def adopt(self, supported: Supported) -> Supported:
        """Give what the facilitator settles the names that the tokens themselves sign with (contract 5.3)."""
        assets = {name: self._adopted(name, asset) for name, asset in supported.assets.items()}
        return supported if assets == supported.assets else replace(supported, assets=assets)

    def _adopted(self, network: str, asset: Asset) -> Asset:
        chain = self._chains.get(network)
        own = chain.asset if chain is not None else None
        return asset if own is None or own.address != asset.address else asset.known_as(own)

    async def _open(self) -> None:
        for name, chain in self._chains.items():
            try:
                await chain.open()
            except RpcUnavailable as error:
                _LOG.warning("network_not_reachable", network=name, reason=str(error))
            except Exception:  # noqa: BLE001 - logged; it is asked again, and so are the others
                _LOG.exception("network_not_opened", network=name)

    async def keep_open(self) -> None:
        """Ask every node who it is, and again from time to time, until cancelled."""
        while True:
            await self._open()
            self.asked.set()
            await asyncio.sleep(OPEN_AGAIN_SECONDS if self.is_open else RETRY_SECONDS)

    async def aclose(self) -> None:
        """End the connections."""
        for chain in self._chains.values():
            await chain.close()

    def on(self, network: str) -> PaymentEvidence:
        """Return what asks the nodes of a network that is covered."""
        return self._evidence[network]

    async def settle(
        self, expected: ExpectedTransfer, asking: Awaitable[SettleAnswer], *, trusted: bool, confirms: bool
    ) -> SettleAnswer:
        """Wait for the facilitator's answer and until the chain agrees; PENDING where it does not in time.

        `trusted`: its success counts before it is seen. `confirms`: it has waited for the chain itself. Without a node
        nothing can be seen: its success counts, and a failure that may follow a sending is PENDING.
        """
        answer = await asking
        is_success, covers = answer.outcome is SettleMeaning.SUCCESS, self.covers(expected.key.network)
        if is_before_sending(answer) or (is_success and (trusted or confirms or not covers)):
            return answer
        named, loop = replace(expected, named=answer.transaction), asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_SECONDS
        while covers:
            finding = await self._look(named)
            if finding.outcome is not EvidenceOutcome.UNKNOWN:
                return finding.answer
            if not (is_success and finding.may_change and loop.time() < deadline):
                break
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return SettleAnswer(SettleMeaning.PENDING, answer.transaction, answer.reason or NOT_SEEN)

    async def _look(self, expected: ExpectedTransfer) -> PaymentFinding:
        try:
            return await self.on(expected.key.network).of(expected)
        except RpcUnavailable as error:
            _LOG.info("chain_not_seen", reason=str(error))
            return UNUSED


def is_before_sending(answer: SettleAnswer) -> bool:
    """Say whether it is a refusal that no transaction can have preceded."""
    return answer.outcome is SettleMeaning.FAILED and not answer.transaction and answer.reason in BEFORE_SENDING
