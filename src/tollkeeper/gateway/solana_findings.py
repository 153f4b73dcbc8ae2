"""What a Solana chain shows of a payment (contract 4.3, 4.4; spec 2.3): the very message, executed, without an error.

A message is executed once at most, whatever signatures it comes with, and it is the payment: amount, mint, both
accounts and payer stand in it. So the transaction that a facilitator names counts only where its message is the
payment's; one that it does not name is looked for among those of the payer. It has failed only by proof: executed with
an error in a finalized slot, or in none of the finalized blocks in which its blockhash was recent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.chains.receipts import Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.chains.solana import (
    BLOCKHASH_LIFETIME_BLOCKS,
    LAG_BLOCKS,
    SLOTS_PER_SECOND_MAX,
    Lifetime,
    blocks_behind,
    has_all,
    has_ended,
    known_end,
)
from tollkeeper.chains.solana.uses import UseReader
from tollkeeper.core.base58 import decode
from tollkeeper.core.ed25519 import SIGNATURE_SIZE_BYTES
from tollkeeper.core.settling import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.solana import read_transfer
from tollkeeper.core.solana.programs import associated_token_account
from tollkeeper.core.verification import Reason
from tollkeeper.gateway.findings import NOTHING, Finding, Seen, require_asset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.chains.solana import SolanaChain
    from tollkeeper.chains.solana.uses import Use
    from tollkeeper.core.wire import Payment, PaymentKey
    from tollkeeper.gateway.findings import Owed
    from tollkeeper.gateway.hub_client import Senders

# Before it was asked for, a payment can have been executed while its blockhash was recent; not every slot has a block.
_SLOTS_BEFORE: Final = 2 * (BLOCKHASH_LIFETIME_BLOCKS + LAG_BLOCKS)
_LIFETIMES_MAX: Final = 20_000


class _Counted(NamedTuple):
    """What a payment's life is counted from, and from when on (Unix milliseconds) that is asked again.

    It was there at `first_ms`. `origin_slot`: where slots began if there were always as many as there can be.
    """

    first_ms: int
    origin_slot: int
    last_height: int
    doubted_ms: int

    def lifetime(self, asked_ms: int) -> Lifetime:
        """Of who asked for it then. The payment was there when anybody asked first: later askers see no less of it."""
        since_slots = (min(asked_ms, self.first_ms) // 1000 - 1) * SLOTS_PER_SECOND_MAX
        return Lifetime(max(0, self.origin_slot + since_slots - _SLOTS_BEFORE), self.last_height)


class SolanaFindings:
    """Of one network."""

    def __init__(self, chain: SolanaChain, clock_ms: Callable[[], int]) -> None:
        self._chain = chain
        self._clock_ms = clock_ms
        self._uses = UseReader(chain)
        # Of payments that were not found. Where one is forgotten, by a start or among too many, it begins later.
        self._counted: OrderedDict[PaymentKey, _Counted] = OrderedDict()

    async def find(self, owed: Owed, named: str, senders: Senders) -> Finding:
        """What the chain shows of the payment now; `named` as in `ChainProofs.find`. Raises: RpcUnavailable."""
        require_asset(self._chain, owed)
        use = await self._read(named, owed) if _is_signature(named) else None
        if use is not None and use.payment.key == owed.key:
            finding = self._judge(use, owed, named, senders)
        else:
            finding = await self._search(owed, named, senders)
        # What has expired stays so: presented again, it is told at once. What was seen is found again by its name.
        if finding.seen is not Seen.NOTHING and finding.reason is not Reason.SVM_EXPIRED:
            self._counted.pop(owed.key, None)
        return finding

    async def find_use(self, owed: Owed, payment: Payment) -> Finding | None:
        """FOREIGN where somebody has had the payment executed by now, also with an error.

        FAILED where it can be executed no more: then it was, or not, long before all that is looked through; or where
        it would pay an account that nobody can be paid on, or that its wallet has signed away, which a facilitator need
        not look at. Else NOTHING. Raises: RpcUnavailable.
        """
        require_asset(self._chain, owed)
        lifetime = await self._lifetime(owed)
        signature = await self._named_by_any(owed.key, lifetime)
        if signature is not None:
            return Finding(Seen.FOREIGN, signature)
        transfer = read_transfer(payment.transacted)
        if not await self._chain.takes(transfer):
            return Finding(Seen.FAILED, reason=Reason.SVM_EXPIRED)
        holder = await self._chain.holder_of(transfer.destination)
        return NOTHING if holder.is_its_own else Finding(Seen.FAILED, reason=Reason.SVM_NO_RECIPIENT)

    async def is_signed(self, payment: Payment) -> bool:  # noqa: ARG002 - no other one gets so far (`tender_of`)
        """A payer's key alone signs here."""
        return True

    async def _search(self, owed: Owed, named: str, senders: Senders) -> Finding:
        lifetime = await self._lifetime(owed)
        is_over = await has_ended(self._chain, lifetime)  # before the search, which then sees all that there will be
        signature = await self._uses.find(owed.key, lifetime.first_slot)
        if signature is None:
            has_failed = is_over and await self._is_nowhere(owed.key, lifetime)
            return Finding(Seen.FAILED, reason=Reason.SVM_EXPIRED) if has_failed else NOTHING
        use = await self._read(signature, owed)
        return NOTHING if use is None else self._judge(use, owed, named, senders)

    async def _read(self, signature: str, owed: Owed) -> Use | None:
        """The use in this transaction, which is deep as the owed amount needs it. Raises: RpcUnavailable."""
        is_final_needed = self._chain.config.depths.of(owed.value) > 1
        return await self._uses.read(signature, is_final_needed=is_final_needed)

    async def _named_by_any(self, key: PaymentKey, lifetime: Lifetime) -> str | None:
        """The payment's transaction, as any of so many nodes names it as an outcome needs; None where none does.

        Whoever names it shows it, and one that is behind knows nothing of it. Raises: RpcUnavailable.
        """
        found: list[str] = []

        async def judge(chain: SolanaChain) -> bool:
            uses = UseReader(chain, self._uses)
            signature = await uses.find(key, lifetime.first_slot)
            found.extend([signature] if signature is not None else [])
            return signature is not None

        is_used = await self._chain.agreed(judge, lambda is_used: is_used)
        if is_used is None and not found:
            msg = "too few nodes list the payer's transactions"
            raise RpcUnavailable(msg)
        return found[0] if found else None

    async def _is_nowhere(self, key: PaymentKey, lifetime: Lifetime) -> bool:
        """Does enough of the nodes, each by itself, show no such transaction of the payer?"""

        async def judge(chain: SolanaChain) -> bool:
            slot = await known_end(chain, lifetime)
            if slot is None:
                return False
            unseen = await UseReader(chain, self._uses).unseen(key, lifetime.first_slot, slot)
            return unseen is not None and await has_all(chain, lifetime, slot, unseen)

        return bool(await self._chain.agreed(judge, lambda is_absent: not is_absent))

    def _judge(self, use: Use, owed: Owed, named: str, senders: Senders) -> Finding:
        payment, sighting = use.payment, use.sighting
        if not sighting.deep:
            return NOTHING
        if sighting.verdict is not Verdict.TRANSFERRED:
            return Finding(Seen.FAILED, payment.transaction_hash, Reason.SVM_TRANSACTION_FAILED)
        reached = {owed.pay_to, associated_token_account(owed.pay_to, owed.key.asset, self._chain.config.token_program)}
        is_owed = payment.pay_to in reached and payment.value == owed.value
        is_theirs = senders.sent(payment.sender, is_vouched=bool(named))
        seen = Seen.PAID if is_owed and is_theirs else Seen.FOREIGN
        return Finding(seen, payment.transaction_hash, is_made=is_owed)

    async def _lifetime(self, owed: Owed) -> Lifetime:
        """Where the chain can hold the payment. Its blockhash was there when it was asked for, or never.

        What a node said of the newest block is counted from, and asked again after a while, because it may have lied.
        One that has fallen behind may catch up before the payment's blockhash, which it does not know, has ended.
        """
        counted, now_ms = self._counted.get(owed.key), self._clock_ms()
        if counted is None or now_ms >= counted.doubted_ms:
            slot, height, newest = await self._chain.head()
            height += await blocks_behind(self._chain, newest, now_ms // 1000)
            first_ms, origin_slot = now_ms, slot - now_ms // 1000 * SLOTS_PER_SECOND_MAX
            last_height = height + BLOCKHASH_LIFETIME_BLOCKS + LAG_BLOCKS
            counted = self._counted.get(owed.key)  # by others, too, meanwhile
            if counted is not None:  # either is right where the nodes were
                first_ms = min(first_ms, counted.first_ms)
                origin_slot, last_height = max(origin_slot, counted.origin_slot), min(last_height, counted.last_height)
            counted = _Counted(first_ms, origin_slot, last_height, now_ms + LIFETIME_DOUBTED_SECONDS * 1000)
            self._counted[owed.key] = counted
            while len(self._counted) > _LIFETIMES_MAX:
                self._counted.popitem(last=False)
        return counted.lifetime(owed.asked_ms)


def _is_signature(text: str) -> bool:
    try:
        decode(text, size_bytes=SIGNATURE_SIZE_BYTES)
    except ValueError:
        return False
    return True
