"""Settlements on Solana: the verbs of `hub.settlement.family`, in their order (contract 5.2; security A-15, F22).

A payment is a message, which the chain executes once, and our fee payer's signature is its transaction's name. Until
when it can be executed is known from its simulation and kept with the row; `find_out` (`findings`) proves that it was
not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Verdict
from tollkeeper.chains.solana.blockhashes import BLOCKHASH_LIFETIME_BLOCKS, LAG_BLOCKS, Lifetime
from tollkeeper.chains.solana.payment_lookup import holding, is_named
from tollkeeper.core.settlement.states import State
from tollkeeper.core.solana.rules import FEE_PAYER_WITHOUT_MONEY, chain_checks, transaction_checks, transfer_of
from tollkeeper.core.x402.verification import Reason
from tollkeeper.core.x402.version1 import SolanaPayload
from tollkeeper.hub.refusals import unavailable
from tollkeeper.hub.settlement.concurrent_payers import balance_beside
from tollkeeper.hub.settlement.orders import PriorOutcome
from tollkeeper.hub.solana.findings import find_out
from tollkeeper.hub.solana.signing import SolanaTerms, claim_and_co_sign, lifetime_of
from tollkeeper.storage.hub.settlements import find_settlement
from tollkeeper.storage.hub.transactions import open_lane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.core.solana.rules import SolanaTransfer
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.settlement.family import Claimed, ProvenTransition, SettlementParts
    from tollkeeper.hub.solana.account import SolanaAccount
    from tollkeeper.hub.solana.signing import SolanaOrder
    from tollkeeper.storage.hub.payers import Overdrawn
    from tollkeeper.storage.hub.settlements import Settlement

# A node says so of a payment that was carried out, and of one whose transaction can be executed no more.
_MAY_BE_USED: Final = frozenset({Reason.DUPLICATE, Reason.SVM_EXPIRED})
# So long after its start what a hub has forgotten, restored from a backup, is not called too old by a node with a gap.
_FORGOTTEN_MS: Final = 3_600_000


class SolanaFamily:
    """The family's verbs, for all its networks of one process."""

    def __init__(self, parts: SettlementParts) -> None:
        self._parts = parts
        self._began_ms = parts.clock_ms()

    async def open(self, account: SolanaAccount) -> None:
        """Number the fee payers' transactions, only to tell them apart: the chain knows no such number."""
        for address in account.signers.addresses:
            await self._parts.database.run(open_lane(account.chain.network.name, address, 0))

    async def simulate(self, order: SolanaOrder, *, with_balance: bool) -> SolanaTerms | Reason:  # noqa: ARG002 - always read
        """Simulate the message, and learn until which block it can be executed."""
        account, transfer = order.account, order.payload
        simulated = await account.chain.simulate(transfer)
        relayer = account.signers.of(transfer.fee_payer)
        relayer.balance.see(simulated.fee_money, 1)
        if simulated.error in FEE_PAYER_WITHOUT_MONEY or not relayer.can_pay():
            raise account.without_money()
        account.chain.require_asset()  # it may be disabled this moment
        if simulated.error is not None or simulated.ends_too_soon or not simulated.reaches:
            facts = await account.chain.state(transfer, waits=False)
            for check in chain_checks(transfer, account.asset, facts):
                if not check.ok:
                    return check.reason
        return SolanaTerms(simulated.lifetime, simulated.balance, relayer.balance.spendable(simulated.fee_money))

    async def claim(self, order: SolanaOrder, known: Settlement | None, row_id: str, terms: SolanaTerms) -> Claimed:
        """Claim; what is on the chain already is co-signed to the same bytes, and sent again."""
        return await claim_and_co_sign(self._parts, order, known, row_id, terms)

    async def find_out(self, account: SolanaAccount, row: Settlement) -> ProvenTransition:
        """Conclude from the status, or from all blocks that could hold the transaction."""
        return await find_out(self._parts, account, row)

    async def prior(self, account: SolanaAccount, payment: Payment, reason: Reason) -> PriorOutcome | None:
        """Find what we settled in our books, or else on the chain by our signature, which names it.

        The signature is looked for only if nothing can be done with the payment any more. Nothing is told of what its
        payer did not sign: a former fee payer of ours is found before the payer's signature is looked at.
        """
        if reason is Reason.SVM_FEE_PAYER and not _is_signed(account, payment):
            return None
        key, transfer = account.identified(payment)
        row = await find_settlement(self._parts.database, key)
        if row is not None and row.state is not State.FAILED:
            return PriorOutcome(Reason.DUPLICATE, row.told_hash)
        if row is not None and row.error == Reason.SVM_TRANSACTION_FAILED:
            return PriorOutcome(Reason.SVM_TRANSACTION_FAILED, row.told_hash)
        if reason not in _MAY_BE_USED:
            return None
        try:
            signature, sighting = await self._own_transaction(account, transfer)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        if sighting is not None:  # while nobody knows whether it failed, nobody is told to pay again
            told = Reason.SVM_TRANSACTION_FAILED if _has_failed(sighting) else Reason.DUPLICATE
            return PriorOutcome(told, signature)
        return PriorOutcome(Reason.DUPLICATE, "") if reason is Reason.DUPLICATE else None

    async def forgotten(self, order: SolanaOrder, reason: Reason) -> SolanaTerms | PriorOutcome | None:
        """Find the payment by what the chain shows of it: only we can have carried it out, and our signature names it.

        This waits until that is beyond doubt: a buyer who is refused for it pays twice.
        """
        if reason not in _MAY_BE_USED:
            return None
        chain = order.account.chain
        signature, sighting = await self._own_transaction(order.account, order.payload)
        if sighting is None:
            return None
        if _has_failed(sighting):
            return PriorOutcome(Reason.SVM_TRANSACTION_FAILED, signature)
        if sighting.verdict is not Verdict.TRANSFERRED or sighting.block_number is None:
            raise RpcUnavailable("it is not shown yet what became of the payment's transaction")
        _, height, _ = await chain.head()
        lifetime = Lifetime(sighting.block_number, height + BLOCKHASH_LIFETIME_BLOCKS + LAG_BLOCKS)
        return SolanaTerms(lifetime, None, None)

    async def balance_now(self, order: SolanaOrder, terms: SolanaTerms, overdrawn: Overdrawn) -> SolanaTerms:
        """Read the balance that is left of the payer's account.

        A payment from another account takes nothing of it, nor does one that can be executed no more.
        """
        transfer = order.payload

        async def held(hashes: Sequence[str]) -> tuple[int, list[bool]]:
            rows = [
                await find_settlement(self._parts.database, structs.replace(order.key, nonce=one)) for one in hashes
            ]
            paying = {row.transaction_hash: row for row in rows if row and _is_paid_from(transfer.source, row)}
            found = await holding(order.account.chain.reader, transfer.source, transfer.payer, list(paying))
            open_yet = {
                row.key.nonce
                for row, is_executed in zip(paying.values(), found.executed, strict=True)
                if not is_executed and found.height <= lifetime_of(row).last_height
            }
            return found.money, [one not in open_yet for one in hashes]

        balance, used = await balance_beside(order, transfer.value, overdrawn, held)
        return replace(terms, balance=balance, used=used)

    def same_payment(self, order: SolanaOrder, row: Settlement) -> bool:  # noqa: ARG002 - the message is its name
        """Say yes: a payment is its message, which says whom it pays and how much."""
        return True

    async def _own_transaction(self, account: SolanaAccount, transfer: SolanaTransfer) -> tuple[str, Sighting | None]:
        """Return our signature, by which the chain names the transaction, and what it shows of one that it lists.

        Raises: RpcUnavailable.
        No node is asked about the signature before it has named it itself: whoever has it can have the transaction
        executed, if what it said of the blockhash is a lie, and nothing of that would be in our books or count in a
        budget. What this process has begun is in the books; what a restored backup forgot was made before.
        """
        fee_payer = account.signers.of(transfer.fee_payer).signer
        _, signature = fee_payer.co_sign(transfer.payload, account.asset, account.policy)
        is_young = self._parts.clock_ms() - self._began_ms < _FORGOTTEN_MS
        if not await is_named(account.chain.quorum, transfer.payer, signature, by_whole=is_young):
            return signature, None
        (sighting,) = await account.chain.see([signature])
        return signature, sighting


def _is_paid_from(source: str, row: Settlement) -> bool:
    """Say whether a payment under way is made from this account."""
    transfer = transfer_of(SolanaPayload(json.loads(row.payment)["payload"]["transaction"]))
    return bool(row.transaction_hash) and transfer is not None and transfer.source == source


def _is_signed(account: SolanaAccount, payment: Payment) -> bool:
    """Say whether it is a payment of this mint that its payer signed, whoever was to pay its fee."""
    return all(check.ok for check in transaction_checks(payment.transacted, account.asset))


def _has_failed(sighting: Sighting) -> bool:
    """Say whether it was executed with an error, for good."""
    return sighting.verdict is Verdict.REVERTED and sighting.deep
