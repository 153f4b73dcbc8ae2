"""Evidence on a Solana chain of a payment (contract 4.3, 4.4; spec 2.3): the very message, executed, without an error.

A message is executed once at most, whatever signatures it comes with, and it is the payment: amount, mint, both
accounts and payer stand in it. Its transaction has the fee payer's signature for a name, so only one that the
facilitator named is looked up, and counts where its message is the payment's. Whether a payment is unused is asked
before the facilitator is: a node that has executed a message of a recent blockhash refuses to simulate it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.chains.sightings import Verdict
from tollkeeper.chains.solana.expiry_proof import standing_of
from tollkeeper.chains.solana.payment_lookup import read_use
from tollkeeper.chains.solana.reader import BLOCKHASH_UNKNOWN
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import Family
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.programs import associated_token_account
from tollkeeper.core.solana.rules import ALREADY_PROCESSED, read_transfer
from tollkeeper.core.x402.verification import Reason
from tollkeeper.gateway.evidence.port import UNUSED, EvidenceOutcome, PaymentFinding, alike, require_asset

if TYPE_CHECKING:
    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.chains.solana.payment_lookup import PaymentUse
    from tollkeeper.chains.solana.reader import SolanaReader
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.core.solana.rules import SolanaTransfer
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.gateway.evidence.port import ExpectedTransfer

# A named transaction that is not there may come while its blockhash, which was recent when it was asked for, is taken.
_LIFETIME_MS: Final = 180_000


class SolanaEvidence:
    """Evidence of one network."""

    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain

    async def of(self, expected: ExpectedTransfer) -> PaymentFinding:
        """Look the named transaction up."""
        require_asset(self._chain, expected)
        if FAMILIES[Family.SOLANA].transaction_name(expected.named) is None:
            return PaymentFinding(EvidenceOutcome.UNKNOWN)
        is_final_needed = self._chain.config.depths.of(expected.value) > 1
        use = await read_use(self._chain, expected.named, is_final_needed=is_final_needed)
        if use is None:
            may_come = clock_ms() < expected.asked_ms + _LIFETIME_MS
            return PaymentFinding(EvidenceOutcome.UNKNOWN, may_change=may_come)
        return (
            self._judged(use, expected) if use.payment.key == expected.key else PaymentFinding(EvidenceOutcome.UNKNOWN)
        )

    def _judged(self, use: PaymentUse, expected: ExpectedTransfer) -> PaymentFinding:
        payment, sighting = use.payment, use.sighting
        if not sighting.deep:
            return PaymentFinding(EvidenceOutcome.UNKNOWN, expected.named, Reason.DUPLICATE, may_change=True)
        if sighting.verdict is not Verdict.TRANSFERRED:
            return PaymentFinding(EvidenceOutcome.FAILED, expected.named, Reason.SVM_TRANSACTION_FAILED)
        asset, program = expected.key.asset, self._chain.config.token_program
        reached = {expected.pay_to, associated_token_account(expected.pay_to, asset, program)}
        is_owed = payment.pay_to in reached and payment.value == expected.value
        if is_owed and expected.senders.sent(payment.sender, is_named=True):
            return PaymentFinding(EvidenceOutcome.PAID, expected.named)
        return PaymentFinding(EvidenceOutcome.UNKNOWN, expected.named, Reason.DUPLICATE)

    async def before(self, expected: ExpectedTransfer, payment: Payment) -> PaymentFinding:
        """Have the payment simulated: is it new, may it be executed yet, does its recipient get it?"""
        require_asset(self._chain, expected)
        transfer = read_transfer(payment.transacted)
        return alike(
            await self._chain.quorum.agreed(lambda node: _simulated(node, transfer), lambda found: found == UNUSED)
        )

    async def standing(self, payment: Payment, key: PaymentKey) -> AuthorizationStanding:  # noqa: ARG002 - its message says all
        """Ask for its blockhash, and have the message simulated without its signature: was it executed?"""
        unsigned = read_transfer(payment.transacted.unsigned())
        blockhash = encode_key(unsigned.transaction.message.recent_blockhash)
        standing = await standing_of(self._chain.reader, blockhash)
        if not standing.is_unused:
            return standing
        simulation = await self._chain.simulate(unsigned)
        return standing._replace(is_unused=simulation.error not in {ALREADY_PROCESSED, BLOCKHASH_UNKNOWN})

    async def accepts(self, payment: Payment) -> bool:  # noqa: ARG002 - on Solana keys sign
        """Refuse: what a key did not sign was refused before."""
        return False


async def _simulated(reader: SolanaReader, transfer: SolanaTransfer) -> PaymentFinding:
    simulation = await reader.simulate(transfer)
    if simulation.error == ALREADY_PROCESSED:  # with or without an error of its own
        return PaymentFinding(EvidenceOutcome.UNKNOWN, reason=Reason.DUPLICATE)
    if simulation.error == BLOCKHASH_UNKNOWN:  # it was executed long ago, or never will be
        return PaymentFinding(EvidenceOutcome.FAILED, reason=Reason.SVM_EXPIRED)
    if not simulation.reaches:
        return PaymentFinding(EvidenceOutcome.FAILED, reason=Reason.SVM_NO_RECIPIENT)
    return UNUSED
