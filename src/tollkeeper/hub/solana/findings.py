"""Finds out what became of a transaction that is not seen, or was seen to fail, on Solana (security 5, A-15, F4).

A transaction has no nonce of ours: it can be carried out until its blockhash is too old, so it is sent again until
then, and is expired by proof afterwards. One that was executed and failed is spent: the same message is never executed
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.chains.sightings import Submission, Verdict
from tollkeeper.chains.solana.expiry_proof import has_expired
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS, Proof, State
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.settlement.family import ProvenTransition, expected_transfer, transferred
from tollkeeper.hub.solana.signing import lifetime_of
from tollkeeper.storage.hub.settlements import Move
from tollkeeper.storage.hub.transactions import transactions_of

if TYPE_CHECKING:
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.hub.solana.account import SolanaAccount
    from tollkeeper.storage.hub.settlements import Settlement
    from tollkeeper.storage.hub.transactions import RawTransaction


async def find_out(parts: SettlementParts, account: SolanaAccount, row: Settlement) -> ProvenTransition:
    """Return what the chain shows of the row; if it shows nothing, send again what can still be executed.

    Raises: RpcUnavailable, StorageError.
    """
    chain = account.chain
    raws = await transactions_of(parts.database, row)
    if not raws:
        return ProvenTransition(row)
    raw = raws[0]
    (sighting,) = await chain.look([expected_transfer(row, chain.config.depths, raw.hash)])
    if sighting.verdict is Verdict.DOUBTED:
        return ProvenTransition(row)
    if sighting.verdict is Verdict.TRANSFERRED:
        return transferred(row, sighting, parts.clock_ms())
    if sighting.verdict is Verdict.REVERTED:
        failed = _failed(parts, Proof.SPENT, Reason.SVM_TRANSACTION_FAILED, sighting.block_number)
        return ProvenTransition(row, failed if sighting.deep else None)
    blockhash = encode_key(read_transaction(raw.raw).message.recent_blockhash)
    is_long_ago = parts.clock_ms() - raw.created_ms >= LIFETIME_DOUBTED_SECONDS * 1000
    doubted_since = raw.created_ms // 1000 if is_long_ago else None
    if await has_expired(chain.quorum, raw.hash, blockhash, lifetime_of(row), doubted_since):
        return ProvenTransition(row, _failed(parts, Proof.EXPIRED, Reason.SVM_EXPIRED))
    return await _sent_again(parts, account, row, raw)


def _failed(parts: SettlementParts, proof: Proof, reason: Reason, block_number: int | None = None) -> Move:
    return Move(
        State.FAILED,
        parts.clock_ms(),
        block_number=block_number,
        proof=proof,
        error=reason.value,
        detail=proof.name,
        cost_gas=proof is Proof.SPENT,
        cost_nothing=proof is Proof.EXPIRED,
    )


async def _sent_again(
    parts: SettlementParts, account: SolanaAccount, row: Settlement, raw: RawTransaction
) -> ProvenTransition:
    submission = await account.chain.submit_to_all(raw.raw, raw.hash)
    if row.state is State.MINED:
        return ProvenTransition(row, Move(State.BROADCAST, parts.clock_ms(), detail="no longer on the chain"))
    if submission is Submission.TAKEN and row.state is State.SIGNED:
        return ProvenTransition(row, Move(State.BROADCAST, parts.clock_ms()))
    return ProvenTransition(row)
