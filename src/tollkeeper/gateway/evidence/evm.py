"""Evidence on an EVM chain of a payment (contract 4.3, 4.4): `authorizationState`, and one log query.

The token remembers every used nonce for ever, so that an unused one is FAILED a minute after its end, at a block as
deep as the amount needs. The log of a used one names its transaction, whose receipt must show the very transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.chains.sightings import Expected, Verdict
from tollkeeper.core.settlement.states import EXPIRY_MARGIN_SECONDS
from tollkeeper.core.x402.verification import Reason
from tollkeeper.gateway.evidence.port import UNUSED, EvidenceOutcome, PaymentFinding, alike, require_asset

if TYPE_CHECKING:
    from tollkeeper.chains.evm.blocks import Block
    from tollkeeper.chains.evm.chain import EvmChain
    from tollkeeper.chains.evm.reader import EvmReader
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.gateway.evidence.port import ExpectedTransfer

# An authorization is not used long before somebody is asked to carry it out: it was verified first. The clock that
# showed when that was may have been ahead of the chain's.
_BEFORE_ASKED_SECONDS: Final = 86_400
# A node that does not show the log of a use for so long keeps no such logs.
_UNEXPLAINED_MS: Final = 3_600_000


class EvmEvidence:
    """Evidence of one network."""

    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain

    async def of(self, expected: ExpectedTransfer) -> PaymentFinding:
        """Ask as many nodes as an outcome needs."""
        require_asset(self._chain, expected)
        depth_blocks = self._chain.config.depths.of(expected.value)
        return alike(
            await self._chain.quorum.agreed(
                lambda reader: _found(reader, expected, depth_blocks), lambda finding: finding == UNUSED
            )
        )

    async def before(self, expected: ExpectedTransfer, payment: Payment) -> PaymentFinding:  # noqa: ARG002 - its key says all
        """The same: whatever `of` finds but an unused authorization refuses the payment."""
        return await self.of(expected)

    async def standing(self, payment: Payment, key: PaymentKey) -> AuthorizationStanding:  # noqa: ARG002 - its key says all
        """Ask the token."""
        return await self._chain.authorizations.of(key.asset).unused(key.payer, key.nonce)

    async def accepts(self, payment: Payment) -> bool:
        """Ask the payer's wallet (ERC-1271)."""
        asset = self._chain.asset
        return asset is not None and await self._chain.wallet_accepts(payment.authorized, asset) is True


async def _found(reader: EvmReader, expected: ExpectedTransfer, depth_blocks: int) -> PaymentFinding:
    """Return what these nodes show. Raises: RpcUnavailable."""
    # Of the latest block, because many nodes know no older state: what is unused there was unused before.
    key, authorizations = expected.key, reader.authorizations
    standing = await authorizations.standing(key.payer, key.nonce, (), depth_blocks=1)
    is_over = _is_after(standing.block, expected)
    if is_over and depth_blocks > 1:  # after so deep a block it cannot be used on any branch
        is_over = _is_after(await authorizations.block(depth_blocks), expected)
    if not standing.is_used:
        return PaymentFinding(EvidenceOutcome.FAILED, reason=Reason.VALID_BEFORE) if is_over else UNUSED
    now_seconds = standing.block.timestamp_seconds
    use = await authorizations.find_use(
        key.payer, key.nonce, min(expected.asked_ms // 1000, now_seconds) - _BEFORE_ASKED_SECONDS
    )
    if use is None:
        is_new = not is_over and now_seconds * 1000 < expected.asked_ms + _UNEXPLAINED_MS
        return PaymentFinding(EvidenceOutcome.UNKNOWN, reason=Reason.NONCE_USED, may_change=is_new)
    transaction = use.transaction_hash
    receipt = Expected(transaction, key.asset, key.payer, expected.pay_to, expected.value, key.nonce, depth_blocks)
    (sighting,) = await reader.look([receipt])
    if not sighting.deep:
        return PaymentFinding(EvidenceOutcome.UNKNOWN, transaction, Reason.NONCE_USED, may_change=True)
    if use.is_cancellation:
        return PaymentFinding(EvidenceOutcome.FAILED, transaction, Reason.NONCE_USED)
    sender = await authorizations.sender_of(transaction)
    is_theirs = expected.senders.sent(sender, is_named=transaction == expected.named.lower())
    if sighting.verdict is Verdict.TRANSFERRED and is_theirs:
        return PaymentFinding(EvidenceOutcome.PAID, transaction)
    return PaymentFinding(EvidenceOutcome.UNKNOWN, transaction, Reason.NONCE_USED)


def _is_after(block: Block, expected: ExpectedTransfer) -> bool:
    """Say whether no block after this one can carry the payment out."""
    end = expected.valid_before
    return end is not None and block.timestamp_seconds >= end + EXPIRY_MARGIN_SECONDS
