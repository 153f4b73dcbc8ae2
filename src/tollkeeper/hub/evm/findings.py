"""Finds out what became of a settlement whose transfer is not seen where it was expected (security 5, A-09, F6, F22).

One of the row's other transactions may have made it, one of our signers' that a restored backup forgot, or somebody
else's; or none can make it any more. The facts are read here, the conclusion is `core.settlement.states`'s, and writing
it down is the caller's. A row that contradicts the chain raises: it is set aside, with an alert.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.evm.authorizations import TooFarBack
from tollkeeper.chains.sightings import Sighting, Verdict
from tollkeeper.core.evm.signed_transactions import asks_for, read_signed
from tollkeeper.core.settlement.states import AuthorizationEvidence, Conclusion, Proof, State, conclude
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.settlement.family import (
    Contradiction,
    ProvenTransition,
    Unexplained,
    expected_transfer,
    transferred,
)
from tollkeeper.storage.engine.database import unit_of_work
from tollkeeper.storage.hub.settlements import Move, Settlement, name_transaction
from tollkeeper.storage.hub.transactions import RawTransaction, adopt_transaction, transactions_before, transactions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.evm.authorizations import AuthorizationUse, Standing
    from tollkeeper.chains.evm.blocks import Block
    from tollkeeper.chains.evm.reader import EvmReader
    from tollkeeper.core.evm.signed_transactions import SignedTransaction
    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.evm.signing import EvmSigning
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.storage.engine.database import Steps

_LOG = structlog.get_logger("tollkeeper.hub")
# An authorization is not used long before its payment is claimed: the claim was simulated first. The clock that showed
# when that was may have been ahead of the chain's.
_BEFORE_CLAIM_SECONDS: Final = 86_400
# Long enough after an authorization's end that a block shows it.
OVERDUE_SECONDS: Final = 180
_FAILURES: dict[Conclusion, tuple[Proof, Reason]] = {
    Conclusion.FOREIGN: (Proof.FOREIGN, Reason.NONCE_USED),
    Conclusion.REVERTED: (Proof.REVERTED, Reason.TRANSACTION_FAILED),
    Conclusion.EXPIRED: (Proof.EXPIRED, Reason.VALID_BEFORE),
}


@dataclass(frozen=True, slots=True)
class _Judged:
    """A conclusion, by which transaction of whom, and what else it was drawn from, which is each node's own."""

    conclusion: Conclusion
    used_by: str
    use: AuthorizationUse | None = field(compare=False)
    signed: SignedTransaction | None = field(compare=False)
    block: Block = field(compare=False)


def valid_before(row: Settlement) -> int:
    """Read the authorization's end, Unix seconds. Raises: ValueError, KeyError, TypeError for no such payment."""
    return int(json.loads(row.payment)["payload"]["authorization"]["validBefore"])


class EvmFindings:
    """Findings about one hub's settlements."""

    def __init__(self, parts: SettlementParts, signing: EvmSigning) -> None:
        self._parts = parts
        self._signing = signing

    async def find_out(self, account: EvmAccount, row: Settlement) -> ProvenTransition:
        """Return what the chain shows of the row, by all of its transactions.

        Raises: RpcUnavailable, Unexplained, StorageError, Contradiction.
        """
        chain = account.chain
        depths = chain.config.depths
        raws = await transactions_of(self._parts.database, row)
        sightings = await chain.look([expected_transfer(row, depths, raw.hash) for raw in raws])
        for raw, sighting in zip(raws, sightings, strict=True):
            if sighting.verdict is Verdict.TRANSFERRED:
                return await self._found(row, raw.hash, sighting)
        if any(sighting.verdict is Verdict.DOUBTED for sighting in sightings):
            return ProvenTransition(row)
        earlier = await transactions_before(self._parts.database, row)
        every = [*raws, *earlier]
        is_over = valid_before(row) + OVERDUE_SECONDS <= self._parts.clock_ms() // 1000
        judged = await chain.quorum.agreed(
            partial(_judge, account, row, every), lambda found: _needs_no_second_word(found, is_over=is_over)
        )
        if judged is None:
            _LOG.warning("failure_doubted", settlement=row.id)
        if judged is None or judged.conclusion is Conclusion.WAIT:
            await self._send_of_former_signers(account, every)
            now_ms = self._parts.clock_ms()
            again = await self._signing.try_for_former_signers(account, row, raws, now_ms) if judged else None
            return ProvenTransition(again or row)
        if judged.conclusion is Conclusion.REVERTED:
            again = await self._signing.try_alone(account, row, raws)
            if again is not None:
                return ProvenTransition(again)
        if judged.conclusion is Conclusion.OURS and judged.signed is not None:
            return await self._adopt(account, row, judged.signed)
        former = await chain.look([expected_transfer(row, depths, raw.hash) for raw in earlier]) if earlier else []
        failure = self._failure(judged.conclusion, [*sightings, *former], judged.use, judged.block)
        # What another carried out is no fault of its payer's; what the payer cancelled is.
        is_payer_s = judged.conclusion is not Conclusion.FOREIGN or (
            judged.use is not None and judged.use.is_cancellation
        )
        return ProvenTransition(row, replace(failure, cost_gas=is_payer_s and _cost_gas(raws, sightings)))

    async def _send_of_former_signers(self, account: EvmAccount, raws: Sequence[RawTransaction]) -> None:
        """No lane is kept for a key that is configured no more, but what it signed is as good as ever."""
        for raw in raws:
            if not account.signers.holds(raw.signer):
                await account.chain.submit(raw.raw, raw.hash)

    async def _adopt(self, account: EvmAccount, row: Settlement, signed: SignedTransaction) -> ProvenTransition:
        """Let the row name the transaction of our signer that used the authorization, if it made the transfer."""
        depths = account.chain.config.depths
        (sighting,) = await account.chain.look([expected_transfer(row, depths, signed.hash)])
        if sighting.verdict in {Verdict.ABSENT, Verdict.DOUBTED}:
            return ProvenTransition(row)
        if sighting.verdict is not Verdict.TRANSFERRED:
            raise Contradiction(signed.hash)
        nonce, now_ms = signed.transaction.nonce, self._parts.clock_ms()
        raw = RawTransaction(signed.raw, signed.hash, row.key.network, signed.sender, nonce, now_ms)
        _LOG.warning("transaction_adopted", settlement=row.id, transaction=signed.hash)
        self._parts.metrics.adopted.labels(row.key.network).inc()
        return await self._found(row, signed.hash, sighting, forgotten=raw)

    async def _found(
        self, row: Settlement, transaction_hash: str, sighting: Sighting, forgotten: RawTransaction | None = None
    ) -> ProvenTransition:
        """Let the row name the transaction that made the transfer; store a forgotten one."""
        if transaction_hash != row.transaction_hash:
            named = await self._parts.database.run(_name(row, transaction_hash, forgotten, self._parts.clock_ms()))
            if named is None:
                return ProvenTransition(row)
            row = named
        return transferred(row, sighting, self._parts.clock_ms())

    def _failure(
        self, conclusion: Conclusion, sightings: list[Sighting], use: AuthorizationUse | None, read: Block
    ) -> Move:
        """FAILED, resting on the newest block that shows why; else on the one that the facts are of, `read`.

        Were that taken away, the facts might be others: the row would be open again.
        """
        proof, reason = _FAILURES[conclusion]
        found = (one for one in sightings if one.block_number is not None)
        shown = max(found, key=lambda one: one.block_number or 0, default=None)
        where: tuple[int | None, str | None] = (read.number, read.hash or None)
        if conclusion is Conclusion.REVERTED and shown is not None:
            where = (shown.block_number, shown.block_hash)
        if use is not None:
            where = (use.block_number, use.block_hash)
        return Move(
            State.FAILED,
            self._parts.clock_ms(),
            block_number=where[0],
            block_hash=where[1],
            proof=proof,
            error=reason.value,
            foreign_hash=use.transaction_hash if use is not None else None,
            detail=f"{conclusion.name}: {reason.value}",
        )


async def _judge(account: EvmAccount, row: Settlement, raws: list[RawTransaction], reader: EvmReader) -> _Judged:
    """Conclude from what these nodes show of the authorization; `raws` are the transactions of all attempts.

    Raises: RpcUnavailable, Unexplained.
    """
    key, depth = row.key, account.chain.config.depths.of(row.value)
    signers, authorizations = sorted({raw.signer for raw in raws}), reader.authorizations.of(row.key.asset)
    standing = await authorizations.standing(key.payer, key.nonce, signers, depth)
    since_seconds = min(row.created_ms // 1000, standing.block.timestamp_seconds) - _BEFORE_CLAIM_SECONDS
    try:
        use = await authorizations.find_use(key.payer, key.nonce, since_seconds) if standing.is_used else None
    except TooFarBack as error:
        raise Unexplained(str(error)) from error
    if standing.is_used and use is None:
        raise Unexplained("the authorization is used, and by which transaction is not shown")
    if use is not None and use.depth_blocks < depth:
        use = None
    signed = None if use is None else await authorizations.signed(use.transaction_hash)
    is_ours = None if use is None else await _is_ours(account, row, raws, use, signed, reader)
    conclusion = conclude(
        AuthorizationEvidence(
            is_used=standing.is_used,
            user_is_ours=is_ours,
            nonces_consumed=_all_consumed(raws, standing),
            block_seconds=standing.block.timestamp_seconds,
            valid_before_seconds=valid_before(row),
        )
    )
    used_by = "" if use is None else use.transaction_hash
    return _Judged(conclusion, used_by, use, signed, standing.block)


async def _is_ours(
    account: EvmAccount,
    row: Settlement,
    raws: list[RawTransaction],
    use: AuthorizationUse,
    signed: SignedTransaction | None,
    reader: EvmReader,
) -> bool:
    """Say whether a transaction of ours made, or was to make, the row's transfer. Raises: RpcUnavailable.

    One that was stored for the row is, also where its key is configured no more. A payer can sign something else under
    the same nonce: what carried that out, and is shown to have moved nothing of the row's, ends the row as a stranger's
    does.
    """
    if signed is None or any(raw.hash == use.transaction_hash for raw in raws):
        return signed is not None
    if not account.signers.holds(signed.sender):
        return False
    expected = expected_transfer(row, account.chain.config.depths, use.transaction_hash)
    if asks_for(signed.transaction, expected.transfer):
        return True
    (sighting,) = await reader.look([expected])
    return sighting.verdict is not Verdict.MISMATCH


def _needs_no_second_word(judged: _Judged, *, is_over: bool) -> bool:
    """Say whether nothing is concluded, or what is shows our own signature: its transfer is looked for by itself.

    Where the authorization is over by our clock, that nothing can be concluded yet is one node's word, too.
    """
    return judged.conclusion is Conclusion.OURS or (judged.conclusion is Conclusion.WAIT and not is_over)


@unit_of_work
def _name(
    row: Settlement, transaction_hash: str, forgotten: RawTransaction | None, now_ms: int
) -> Steps[Settlement | None]:
    named = yield from name_transaction(row, transaction_hash, now_ms)
    if named is not None and forgotten is not None:
        yield from adopt_transaction(forgotten, named)
    return named


def _cost_gas(raws: list[RawTransaction], sightings: list[Sighting]) -> bool:
    """Say whether one of them was mined that called the token, and did not only free the nonce."""
    shown = (
        raw for raw, one in zip(raws, sightings, strict=True) if one.verdict in {Verdict.REVERTED, Verdict.MISMATCH}
    )
    return any(read_signed(raw.raw).transaction.data for raw in shown)


def _all_consumed(raws: list[RawTransaction], standing: Standing) -> bool:
    return bool(raws) and all(standing.mined[raw.signer] > raw.signer_nonce for raw in raws)
