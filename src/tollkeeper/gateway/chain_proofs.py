"""What a node shows of a payment at a facilitator that cannot confirm: the gateway's own check (contract 4.3, 4.4).

Such a facilitator knows neither keys nor status and its word is not enough: a payment counts once the very transfer is
on the chain at the configured depth, in a transaction of one of the facilitator's advertised signers. It has failed
only by proof. What else is seen is for the operator, and what is not seen yet is waited for. What each family shows is
read in `evm_findings` and `solana_findings`. What this module does not do: write anything down.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.verification import BEFORE_SENDING
from tollkeeper.gateway.families import findings_of
from tollkeeper.gateway.findings import NOTHING, Seen, answer_of
from tollkeeper.gateway.hub_client import SettleAnswer, Settlement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tollkeeper.core.tenders import Asset
    from tollkeeper.core.wire import Payment
    from tollkeeper.gateway.families import AnyChain
    from tollkeeper.gateway.findings import Finding, Owed
    from tollkeeper.gateway.hub_client import Senders, Supported

OPEN_AGAIN_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 2.0
# The facilitator is given so long before the chain is looked at without its answer.
_PATIENCE_SECONDS: Final = 2.0
_LOOK_AGAIN_SECONDS: Final = 0.25
_WAIT_SECONDS: Final = 30.0
_LOG = structlog.get_logger("tollkeeper.gateway.chain_proofs")


class ChainProofs:
    """The nodes of a gateway whose facilitator is not ours, by network. Without nodes it covers nothing.

    `asked`: every node was asked once who it is.
    """

    def __init__(self, chains: Mapping[str, AnyChain], clock_ms: Callable[[], int]) -> None:
        self._chains = chains
        self._findings = {name: findings_of(chain, clock_ms) for name, chain in chains.items()}
        self.asked = asyncio.Event()

    def covers(self, network: str) -> bool:
        """Is a node configured for the network?"""
        return network in self._chains

    def problem(self, network: str) -> str:
        """Why the network's node cannot be asked now; empty when it can."""
        return "" if self._chains[network].asset is not None else self._chains[network].problem

    @property
    def is_open(self) -> bool:
        """Has every node said who it is?"""
        return all(chain.asset is not None for chain in self._chains.values())

    def adopt(self, supported: Supported) -> Supported:
        """What the facilitator settles, under the names that the tokens themselves sign with (contract 5.3)."""
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
        """Asks every node who it is, and again from time to time, until cancelled."""
        while True:
            await self._open()
            self.asked.set()
            await asyncio.sleep(OPEN_AGAIN_SECONDS if self.is_open else RETRY_SECONDS)

    async def aclose(self) -> None:
        """Ends the connections."""
        for chain in self._chains.values():
            await chain.close()

    async def settle(
        self, owed: Owed, asking: Awaitable[SettleAnswer], senders: Senders, *, trusted: bool, confirms: bool
    ) -> SettleAnswer:
        """The facilitator's answer, once the chain agrees with it; PENDING where it does not in time.

        A transaction that is on the chain counts also while the answer does not come. `trusted`: its success counts
        before it is seen. Where it `confirms`, or no node is set, its answer is enough, but for a failure that may
        follow a sending: what is on its way is looked for, and PENDING without a node.
        """
        covers = self.covers(owed.key.network)
        if confirms or not covers:
            answer = await asking
            if answer.outcome is not Settlement.FAILED or is_before_sending(answer):
                return answer
            if not covers:
                return SettleAnswer(Settlement.PENDING, answer.transaction, answer.reason)
            asking = _told(answer)
        return await self._agreed(owed, asking, senders, trusted=trusted)

    async def _agreed(
        self, owed: Owed, asking: Awaitable[SettleAnswer], senders: Senders, *, trusted: bool
    ) -> SettleAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_SECONDS
        task = asyncio.ensure_future(asking)
        try:
            pause = _PATIENCE_SECONDS
            while True:
                done, _ = await asyncio.wait({task}, timeout=pause)
                answer = task.result() if done else None
                if answer is not None and (is_before_sending(answer) or (trusted and _succeeded(answer))):
                    return answer
                finding = await self._look(owed, answer, senders)
                # Until it answers, a facilitator without advertised signers may still vouch for what was seen.
                is_settled = finding.seen is not Seen.FOREIGN or answer is not None or loop.time() >= deadline
                if finding.seen is not Seen.NOTHING and is_settled:
                    return answer_of(finding)
                if answer is not None and not _succeeded(answer):
                    return SettleAnswer(Settlement.PENDING, answer.transaction, "not_on_the_chain")
                if loop.time() >= deadline:
                    return SettleAnswer(Settlement.PENDING, answer.transaction if answer else "", "not_on_the_chain")
                if answer is not None:
                    pause = 0
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        finally:
            task.cancel()

    async def _look(self, owed: Owed, answer: SettleAnswer | None, senders: Senders) -> Finding:
        named = answer.transaction if answer is not None and _succeeded(answer) else ""
        try:
            return await self.find(owed, named, senders)
        except RpcUnavailable as error:
            _LOG.info("chain_not_seen", reason=str(error))
            return NOTHING

    async def find(self, owed: Owed, named: str, senders: Senders) -> Finding:
        """What the chain shows of the payment now.

        `named` is the transaction that the facilitator called a success, "" where it called none so. It is no proof: it
        says that the facilitator vouches, which stands in for its signers where it advertises none, and where to look.
        Raises: RpcUnavailable.
        """
        return await self._findings[owed.key.network].find(owed, named, senders)

    async def is_signed(self, network: str, payment: Payment) -> bool:
        """Did the payer sign it, by a key or by what its code says? Raises: RpcUnavailable."""
        return await self._findings[network].is_signed(payment)

    async def use_before(self, owed: Owed, payment: Payment) -> Finding:
        """FOREIGN where a payment was used before it is asked for, in a transaction that may not be found ("").

        FAILED where it is too old for that to be seen, or its recipient would not get it; else NOTHING. Raises:
        RpcUnavailable, also where the nodes do not show the same.
        """
        finding = await self._findings[owed.key.network].find_use(owed, payment)
        if finding is None:
            msg = "the nodes do not show alike whether the payment was used"
            raise RpcUnavailable(msg)
        return finding


def _succeeded(answer: SettleAnswer) -> bool:
    return answer.outcome is Settlement.SUCCESS


def is_before_sending(answer: SettleAnswer) -> bool:
    """Is it a refusal that no transaction can have preceded?"""
    return answer.outcome is Settlement.FAILED and not answer.transaction and answer.reason in BEFORE_SENDING


async def _told(answer: SettleAnswer) -> SettleAnswer:
    return answer
