"""From a claimed payment to a proven outcome: send, wait, judge, record (contract 5.2; security 5, F2-F5, F9).

`advance` moves one signed settlement as far as the chain allows until a deadline. It is the same for the request that
started it and for the completer that found it after a crash: what is stored decides, and every step is recorded before
the next. FAILED is entered only with a proof; what nobody knows stays where it is.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.evm import Submission
from tollkeeper.chains.receipts import Expected, Sighting, Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.transactions import Proof, State
from tollkeeper.core.verification import Reason
from tollkeeper.storage.hub import Move, RawTransaction, Settlement, move, read_settlement

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.chains.evm import EvmChain
    from tollkeeper.storage.database import Database

_LOG = structlog.get_logger("tollkeeper.hub")
# An authorization has expired for good once a block this much younger than its end exists: no reorganisation that deep.
EXPIRY_MARGIN_SECONDS: Final = 60
SEND_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Advance:
    """Where `advance` left the row, and whether its success was handed out to the one who asked for it."""

    settlement: Settlement
    handed_out: bool = False


def expected_transfer(settlement: Settlement) -> Expected:
    """The transfer that the row's transaction must show on the chain."""
    key = settlement.key
    return Expected(settlement.transaction_hash, key.asset, key.payer, settlement.pay_to, settlement.value, key.nonce)


def valid_before(settlement: Settlement) -> int:
    """The authorization's end, Unix seconds."""
    return int(json.loads(settlement.payment)["payload"]["authorization"]["validBefore"])


class Pipeline:
    """Carries settlements forward. Holds no row: the database does."""

    def __init__(self, database: Database, clock_ms: Callable[[], int]) -> None:
        self._database = database
        self._clock_ms = clock_ms

    async def advance(
        self, chain: EvmChain, row: Settlement, raw: RawTransaction, deadline: float, *, for_caller: bool = False
    ) -> Advance:
        """Sends a signed transaction and follows it until it is proven or `deadline` (event loop time).

        With `for_caller` a success is handed out in the commit that records it: a proven one, or, where the request
        did not ask for confirmation, one that a node took. Raises: StorageError.
        """
        submission = Submission.UNCLEAR
        # The send has time of its own, so that a caller who waits for no receipt still learns that a node took it.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(deadline, asyncio.get_running_loop().time() + SEND_SECONDS)):
                submission = await chain.submit(raw.raw, raw.hash)
        sighting = await chain.wait(expected_transfer(row), deadline)
        return await self.record(chain, row, submission, sighting, for_caller=for_caller)

    async def record(
        self, chain: EvmChain, row: Settlement, submission: Submission, sighting: Sighting, *, for_caller: bool = False
    ) -> Advance:
        """Writes down what was learned of a row. Raises: StorageError."""
        may_hand_out = for_caller and not row.confirm
        if sighting.verdict is Verdict.TRANSFERRED:
            to = State.CONFIRMED if sighting.deep else State.MINED
            change = Move(
                to,
                self._clock_ms(),
                block_number=sighting.block_number,
                hand_out=for_caller and (sighting.deep or may_hand_out),
            )
        elif sighting.verdict in {Verdict.REVERTED, Verdict.MISMATCH}:
            failure = await self._failure(chain, row, sighting) if sighting.deep else None
            if failure is None:  # not deep, or not proven: nobody may be told that it succeeded
                return Advance(row)
            change = failure
        elif submission is Submission.TAKEN:
            if row.state is not State.SIGNED:  # the row says so already
                return await self._back_from_mined(row)
            change = Move(State.BROADCAST, self._clock_ms(), hand_out=may_hand_out)
        else:
            return Advance(row)
        return await self._move(row, change)

    async def expire(self, chain: EvmChain, row: Settlement) -> Advance:
        """FAILED by proof, where the chain's time has passed the authorization's end and it is unused.

        Raises: RpcUnavailable, StorageError.
        """
        used, block = await chain.authorization_used(row.key.payer, row.key.nonce)
        if used or block.timestamp_seconds < valid_before(row) + EXPIRY_MARGIN_SECONDS:
            return Advance(row)
        change = Move(State.FAILED, self._clock_ms(), proof=Proof.EXPIRED, error=Reason.VALID_BEFORE.value)
        return await self._move(row, change)

    async def give_up(self, row: Settlement) -> Advance:
        """FAILED, because nothing was ever signed for this claim: the payer may present the payment again."""
        change = Move(State.FAILED, self._clock_ms(), proof=Proof.NEVER_SENT, error=Reason.STATE.value)
        return await self._move(row, change)

    async def _back_from_mined(self, row: Settlement) -> Advance:
        """A reorganisation took the block away from a mined row."""
        if row.state is not State.MINED:
            return Advance(row)
        return await self._move(row, Move(State.BROADCAST, self._clock_ms(), detail="no longer on the chain"))

    async def _failure(self, chain: EvmChain, row: Settlement, sighting: Sighting) -> Move | None:
        """The transition that a failed transaction proves; None where the chain does not tell enough."""
        try:
            used, _ = await chain.authorization_used(row.key.payer, row.key.nonce)
            foreign = await chain.find_use(row.key.payer, row.key.nonce) if used else None
        except RpcUnavailable:
            return None
        if not used:
            proof, error = Proof.REVERTED, Reason.TRANSACTION_FAILED
        elif foreign == row.transaction_hash or (foreign is None and sighting.verdict is Verdict.MISMATCH):
            # It says that our transaction used the authorization and moved nothing: a node that lies, or no USDC.
            _LOG.error("settlement_contradicted", settlement=row.id, transaction=row.transaction_hash)
            return None
        else:
            proof, error = Proof.FOREIGN, Reason.NONCE_USED
        return Move(
            State.FAILED,
            self._clock_ms(),
            block_number=sighting.block_number,
            proof=proof,
            error=error.value,
            foreign_hash=foreign,
            detail=f"{sighting.verdict.name}: {error.value}",
        )

    async def _move(self, row: Settlement, change: Move) -> Advance:
        if change.to is row.state:
            return Advance(row)
        moved = await self._database.run(move(row, change))
        if moved is None:  # somebody else moved it: theirs stands
            current = await read_settlement(self._database, row.id)
            return Advance(current or row)
        settlement, handed_out = moved
        if settlement.state is State.FAILED:
            _LOG.warning(
                "settlement_failed", settlement=row.id, proof=settlement.proof, transaction=row.transaction_hash
            )
        return Advance(settlement, handed_out)
