"""What a node shows of a payment at a facilitator that cannot confirm: the gateway's own check (contract 4.3, 4.4).

Such a facilitator knows neither keys nor status and its word is not enough: a payment counts once receipt, Transfer and
AuthorizationUsed are on the chain at the configured depth, in a transaction of one of the facilitator's advertised
signers. It has failed only by proof: unused after its end, or cancelled by its payer. What else is seen is for the
operator, and what is not seen yet is waited for. What this module does not do: write anything down.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.receipts import Expected, Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.verification import Reason
from tollkeeper.gateway.hub_client import SettleAnswer, Settlement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping

    from tollkeeper.chains.evm import EvmChain
    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.gateway.hub_client import Supported

# As the hub has it: a block this much younger than the authorization's end proves that it can never be used.
EXPIRY_MARGIN_SECONDS: Final = 60
OPEN_AGAIN_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 2.0
# The facilitator is given so long before the chain is looked at without its answer.
_PATIENCE_SECONDS: Final = 2.0
_LOOK_AGAIN_SECONDS: Final = 0.25
_WAIT_SECONDS: Final = 30.0
# What a facilitator says before it would send anything. Every other failure may have followed a transaction.
_BEFORE_SENDING: Final = frozenset(Reason) - {
    Reason.NONCE_USED,
    Reason.SIMULATION,
    Reason.TRANSACTION_FAILED,
    Reason.DUPLICATE,
    Reason.STATE,
}
_LOG = structlog.get_logger("tollkeeper.gateway.chain_proofs")


@dataclass(frozen=True, slots=True)
class Owed:
    """The transfer that a payment is to make. `valid_before`: Unix seconds, None where it was not kept."""

    key: PaymentKey
    pay_to: str
    value: int
    valid_before: int | None


class Seen(Enum):
    """What the chain shows of a payment."""

    PAID = auto()
    CANCELLED = auto()  # by its payer: it can never be used
    EXPIRED = auto()  # unused, and it can never be used any more
    FOREIGN = auto()  # carried out, but nobody can say that it was for us
    NOTHING = auto()  # not yet, or not deep enough


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen, and in which transaction ("" where in none)."""

    seen: Seen
    transaction: str = ""


_NOTHING: Final = Finding(Seen.NOTHING)


class ChainProofs:
    """The nodes of a gateway whose facilitator is not ours, by network. Without nodes it covers nothing.

    `asked`: every node was asked once who it is.
    """

    def __init__(self, chains: Mapping[str, EvmChain]) -> None:
        self._chains = chains
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
        own = {name: chain.asset for name, chain in self._chains.items() if chain.asset is not None}
        assets = {
            name: found if (found := own.get(name)) is not None and found.address == asset.address else asset
            for name, asset in supported.assets.items()
        }
        return supported if assets == supported.assets else replace(supported, assets=assets)

    async def _open(self) -> None:
        for name, chain in self._chains.items():
            try:
                await chain.open()
            except RpcUnavailable as error:
                _LOG.warning("network_not_reachable", network=name, reason=str(error))

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
        self, owed: Owed, asking: Awaitable[SettleAnswer], signers: Collection[str], *, trusted: bool
    ) -> SettleAnswer:
        """The facilitator's answer, once the chain agrees with it; PENDING where it does not in time.

        A transaction that is on the chain counts also while the answer does not come. `trusted`: its success counts
        before it is seen.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_SECONDS
        task = asyncio.ensure_future(asking)
        try:
            pause = _PATIENCE_SECONDS
            while True:
                done, _ = await asyncio.wait({task}, timeout=pause)
                answer = task.result() if done else None
                if answer is not None and (_is_before_sending(answer) or (trusted and _succeeded(answer))):
                    return answer
                finding = await self._look(owed, answer, signers)
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

    async def _look(self, owed: Owed, answer: SettleAnswer | None, signers: Collection[str]) -> Finding:
        named = answer.transaction if answer is not None and _succeeded(answer) else ""
        try:
            return await self.find(owed, named, signers)
        except RpcUnavailable as error:
            _LOG.info("chain_not_seen", reason=str(error))
            return _NOTHING

    async def find(self, owed: Owed, named: str, signers: Collection[str]) -> Finding:
        """What the chain shows of the payment now.

        `named` is the transaction that the facilitator called a success, "" where it called none so; it only says that
        the facilitator vouches, which stands in for its signers where it advertises none. Raises: RpcUnavailable.
        """
        chain = self._chains[owed.key.network]
        if chain.asset is None or chain.asset.address != owed.key.asset:
            raise RpcUnavailable(chain.problem or "the node's asset is not the facilitator's")
        standing = await chain.authorizations.standing(owed.key.payer, owed.key.nonce, (), depth_blocks=1)
        end = owed.valid_before
        is_over = end is not None and standing.block.timestamp_seconds >= end + EXPIRY_MARGIN_SECONDS
        if not standing.is_used:
            return Finding(Seen.EXPIRED) if is_over else _NOTHING
        use = await chain.authorizations.find_use(owed.key.payer, owed.key.nonce)
        if use is None:  # used, and where is not to be seen: perhaps too long ago
            return Finding(Seen.FOREIGN) if is_over else _NOTHING
        transaction = use.transaction_hash
        expected = Expected(transaction, owed.key.asset, owed.key.payer, owed.pay_to, owed.value, owed.key.nonce)
        (sighting,) = await chain.look([expected])
        if not sighting.deep:
            return _NOTHING
        if use.is_cancellation:
            return Finding(Seen.CANCELLED, transaction)
        if sighting.verdict is not Verdict.TRANSFERRED:
            return Finding(Seen.FOREIGN, transaction)
        is_theirs = (await chain.authorizations.sender_of(transaction)) in signers if signers else bool(named)
        return Finding(Seen.PAID if is_theirs else Seen.FOREIGN, transaction)


def answer_of(finding: Finding) -> SettleAnswer:
    """A finding in the words of a settle answer."""
    if finding.seen is Seen.PAID:
        return SettleAnswer(Settlement.SUCCESS, finding.transaction, "")
    if finding.seen is Seen.CANCELLED:
        return SettleAnswer(Settlement.FAILED, finding.transaction, Reason.NONCE_USED.value)
    if finding.seen is Seen.EXPIRED:
        return SettleAnswer(Settlement.FAILED, "", Reason.VALID_BEFORE.value)
    if finding.seen is Seen.FOREIGN:
        return SettleAnswer(Settlement.UNPROVABLE, finding.transaction, "not_of_the_facilitators_signers")
    return SettleAnswer(Settlement.PENDING, "", "not_on_the_chain")


def _succeeded(answer: SettleAnswer) -> bool:
    return answer.outcome is Settlement.SUCCESS


def _is_before_sending(answer: SettleAnswer) -> bool:
    """Is it a refusal that no transaction can have preceded?"""
    if answer.outcome is Settlement.REFUSED:
        return True
    return answer.outcome is Settlement.FAILED and not answer.transaction and answer.reason in _BEFORE_SENDING
