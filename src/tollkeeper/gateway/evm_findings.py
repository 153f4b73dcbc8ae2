"""What an EVM chain shows of a payment (contract 4.3, 4.4): receipt, Transfer and AuthorizationUsed, deep enough.

How deep, its amount says, as it does to the hub (`confirm_depth` and its steps). It has failed only by proof: cancelled
by its payer, or unused a minute after its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.chains.receipts import Expected, Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.settling import EXPIRY_MARGIN_SECONDS
from tollkeeper.core.verification import Reason, judged_signature, signature_check
from tollkeeper.gateway.findings import NOTHING, Finding, Seen, require_asset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.chains.blocks import Block
    from tollkeeper.chains.evm import EvmChain
    from tollkeeper.chains.vouching import View
    from tollkeeper.core.wire import Payment
    from tollkeeper.gateway.findings import Owed
    from tollkeeper.gateway.hub_client import Senders

# An authorization is not used long before somebody is asked to carry it out: it was verified first. The clock that
# showed when that was may have been ahead of the chain's.
_BEFORE_ASKED_SECONDS: Final = 86_400
# Nor is it shown later than this what used it, where it ends never or late: then the node keeps no such logs.
_UNEXPLAINED_MS: Final = 3_600_000


class EvmFindings:
    """Of one network."""

    def __init__(self, chain: EvmChain, clock_ms: Callable[[], int]) -> None:  # noqa: ARG002 - the chain has its own
        self._chain = chain

    async def find(self, owed: Owed, named: str, senders: Senders) -> Finding:
        """What the chain shows of the payment now; `named` as in `ChainProofs.find`. Raises: RpcUnavailable."""
        chain = self._chain
        require_asset(chain, owed)
        found = await chain.agreed(
            lambda view: _find(view, owed, chain.config.depths.of(owed.value), senders, is_vouched=bool(named)),
            lambda finding: finding.seen is Seen.NOTHING,
        )
        return found or NOTHING

    async def find_use(self, owed: Owed, payment: Payment) -> Finding | None:  # noqa: ARG002 - its key says all
        """FOREIGN where somebody has used the payment by now, however deep that lies, else NOTHING.

        None where the nodes do not show the same. Raises: RpcUnavailable.
        """
        require_asset(self._chain, owed)
        is_used = await self._chain.agreed(lambda view: _is_used(view, owed), lambda is_used: not is_used)
        if not is_used:
            return None if is_used is None else NOTHING
        use = await self._chain.authorizations.find_use(owed.key.payer, owed.key.nonce)
        return Finding(Seen.FOREIGN, "" if use is None else use.transaction_hash)

    async def is_signed(self, payment: Payment) -> bool:
        """As the token judges it: by the payer's code where there is any, else by its key. Raises: RpcUnavailable."""
        chain, payload = self._chain, payment.authorized
        if chain.asset is None:
            raise RpcUnavailable(chain.problem)
        accepts = await chain.wallet_accepts(payload, chain.asset)
        return judged_signature(signature_check(payload, chain.asset), accepts).ok


async def _is_used(view: View, owed: Owed) -> bool:
    """By the newest block. Raises: RpcUnavailable."""
    return (await view.authorizations.standing(owed.key.payer, owed.key.nonce, (), depth_blocks=1)).is_used


async def _find(view: View, owed: Owed, depth_blocks: int, senders: Senders, *, is_vouched: bool) -> Finding:
    """What these nodes show of the payment. Raises: RpcUnavailable."""
    # Of the latest block, because many nodes know no older state: what is unused there was unused before.
    standing = await view.authorizations.standing(owed.key.payer, owed.key.nonce, (), depth_blocks=1)
    is_over = _is_after(standing.block, owed)
    if is_over and depth_blocks > 1:  # after so deep a block it cannot be used on any branch
        is_over = _is_after(await view.authorizations.block(depth_blocks), owed)
    if not standing.is_used:
        return Finding(Seen.FAILED, reason=Reason.VALID_BEFORE) if is_over else NOTHING
    since_seconds = min(owed.asked_ms // 1000, standing.block.timestamp_seconds) - _BEFORE_ASKED_SECONDS
    use = await view.authorizations.find_use(owed.key.payer, owed.key.nonce, since_seconds)
    if use is None:  # used, and where is not to be seen
        is_long_ago = standing.block.timestamp_seconds * 1000 >= owed.asked_ms + _UNEXPLAINED_MS
        return Finding(Seen.FOREIGN) if is_over or is_long_ago else NOTHING
    key, transaction = owed.key, use.transaction_hash
    expected = Expected(transaction, key.asset, key.payer, owed.pay_to, owed.value, key.nonce, depth_blocks)
    (sighting,) = await view.receipts.look([expected])
    if not sighting.deep:
        return NOTHING
    if use.is_cancellation:
        return Finding(Seen.FAILED, transaction, Reason.NONCE_USED)
    if sighting.verdict is not Verdict.TRANSFERRED:
        return Finding(Seen.FOREIGN, transaction)
    sender = await view.authorizations.sender_of(transaction)
    is_theirs = senders.sent(sender, is_vouched=is_vouched)
    return Finding(Seen.PAID if is_theirs else Seen.FOREIGN, transaction, is_made=True)


def _is_after(block: Block, owed: Owed) -> bool:
    """Can no block after this one carry the payment out?"""
    return owed.valid_before is not None and block.timestamp_seconds >= owed.valid_before + EXPIRY_MARGIN_SECONDS
