"""From a signed payment to a proven outcome: wait, judge, record (contract 5.2; security 5, F2-F5, F9).

The same for the request that started a settlement and for the recovery that found it after a crash: what is stored
decides, and every step is recorded before the next. FAILED is entered only with a proof; what nobody knows stays where
it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import FAILURES, Sighting, Submission, Verdict
from tollkeeper.core.settlement.states import Proof, State
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.settlement.family import (
    Contradiction,
    ProvenTransition,
    TermsT,
    Unexplained,
    expected_transfer,
    transferred,
)
from tollkeeper.hub.settlement.orders import AccountT, PayloadT
from tollkeeper.storage.hub.settlements import Move, Moved, Settlement, move_all, read_settlement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.hub.settlement.family import ChainFamily, SettlementParts
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.hub.settlement.requests import CallerPresence

_LOG = structlog.get_logger("tollkeeper.hub")
SEND_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Advance:
    """Row as `advance` left it, and whether its success was handed out to the caller who asked for it."""

    settlement: Settlement
    handed_out: bool = False


class Pipeline(Generic[AccountT, PayloadT, TermsT]):
    """Carries settlements forward. Holds no row: the database does."""

    def __init__(self, parts: SettlementParts, family: ChainFamily[AccountT, PayloadT, TermsT]) -> None:
        self._parts = parts
        self._family = family

    async def advance(
        self, order: Order[AccountT, PayloadT], row: Settlement, sent: asyncio.Future[Submission]
    ) -> Advance:
        """Follow a signed settlement until it is proven or its order's time is up, for the one who asked for it.

        A success is handed out in the commit that records it: a proven one, or, where the request did not ask for
        confirmation, one that a node took. Raises: StorageError.
        """
        account, deadline, submission = order.account, order.request.deadline, Submission.UNCLEAR
        # The send has time of its own, so that a caller who waits for no receipt still learns that a node took it.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(deadline, asyncio.get_running_loop().time() + SEND_SECONDS)):
                submission = await asyncio.shield(sent)
        while True:
            until = order.request.receipt_deadline if submission is Submission.TAKEN else deadline
            expected = expected_transfer(row, account.chain.config.depths)
            sighting = await account.chain.wait(expected, until)
            advance = await self.record(account, row, submission, sighting, order.request.caller)
            if advance.settlement.transaction_hash == row.transaction_hash:
                return advance
            # It was replaced, or is tried alone: that one is followed now, if there is time.
            row, submission = advance.settlement, Submission.UNCLEAR
            if asyncio.get_running_loop().time() >= deadline:
                return advance

    async def record(
        self,
        account: AccountT,
        row: Settlement,
        submission: Submission,
        sighting: Sighting,
        caller: CallerPresence,
    ) -> Advance:
        """Write down what was learned of a row, for a caller who may be given it. Raises: StorageError."""
        try:
            finding = await self.judge(account, row, submission, sighting)
        except Unexplained:
            _LOG.error("settlement_unexplained", settlement=row.id)
            return Advance(row)
        except RpcUnavailable:
            return Advance(row)
        except Contradiction as error:
            _LOG.error("settlement_contradicted", settlement=row.id, transaction=str(error))
            return Advance(row)
        if finding.move is None:
            return Advance(finding.settlement)
        is_deep = finding.move.to is State.CONFIRMED
        may_be_given = (is_deep or not row.confirm) and finding.move.to is not State.FAILED
        may_hand_out = may_be_given and caller.look()
        (advance,) = await self.apply(
            [ProvenTransition(finding.settlement, replace(finding.move, hand_out=may_hand_out))]
        )
        return advance

    async def judge(
        self, account: AccountT, row: Settlement, submission: Submission, sighting: Sighting
    ) -> ProvenTransition:
        """Return the transition that was learned, if any. Raises: RpcUnavailable, StorageError, Contradiction."""
        if sighting.verdict is Verdict.TRANSFERRED:
            return transferred(row, sighting, self._parts.clock_ms())
        if sighting.verdict in FAILURES:
            # Not deep, or not proven: nobody may be told that it succeeded.
            return await self._family.find_out(account, row) if sighting.deep else ProvenTransition(row)
        if sighting.shows_failure:
            return ProvenTransition(row)
        if submission is Submission.TAKEN and row.state is State.SIGNED:
            return ProvenTransition(row, Move(State.BROADCAST, self._parts.clock_ms()))
        return ProvenTransition(row)

    def given_up(self, row: Settlement) -> ProvenTransition:
        """FAILED, because nothing was ever signed for this claim: the payer may present the payment again."""
        move = Move(State.FAILED, self._parts.clock_ms(), proof=Proof.NEVER_SENT, error=Reason.STATE.value)
        return ProvenTransition(row, move)

    async def apply(self, findings: Sequence[ProvenTransition]) -> list[Advance]:
        """Record transitions in one commit; where somebody else moved a row, theirs stands. Raises: StorageError."""
        moves = [(finding.settlement, finding.move) for finding in findings if finding.move is not None]
        taken = iter(await self._parts.database.run(move_all(moves), is_short=len(moves) == 1) if moves else ())
        advances: list[Advance] = []
        for finding in findings:
            moved: Moved | None = next(taken) if finding.move is not None else None
            if finding.move is None:
                advances.append(Advance(finding.settlement))
            elif moved is None:
                current = await read_settlement(self._parts.database, finding.settlement.id)
                advances.append(Advance(current or finding.settlement))
            else:
                advances.append(Advance(moved.settlement, moved.handed_out))
                row = moved.settlement
                self._parts.metrics.moved.labels(row.key.network, row.state.value).inc()
                _tell(row)
        return advances


def _tell(row: Settlement) -> None:
    if row.state is State.FAILED:
        _LOG.warning("settlement_failed", settlement=row.id, proof=row.proof, transaction=row.transaction_hash)
