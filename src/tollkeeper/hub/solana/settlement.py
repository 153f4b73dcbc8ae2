"""Settling on Solana: what differs from the other family in a settlement that is otherwise the same (contract 5.2).

Simulate, then claim, co-sign and store in one commit, then send: as everywhere. A transaction has no nonce of ours, its
signature is its name, and it can be carried out until its blockhash is too old, so it is sent again until then, and is
expired by proof afterwards. One that was executed and failed is spent: the same message is never executed again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import structlog

from tollkeeper.chains.evm.chain import Submission
from tollkeeper.chains.evm.receipts import Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.chains.solana import BLOCKHASH_LIFETIME_BLOCKS, LAG_BLOCKS, Lifetime, fee_lamports, has_expired
from tollkeeper.chains.solana.payment_lookup import holding, is_named
from tollkeeper.core.settlement.proof import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.settlement.states import Proof, State
from tollkeeper.core.solana import FEE_PAYER_WITHOUT_MONEY, chain_checks, payer_checks, transfer_of
from tollkeeper.core.solana.base58 import encode, encode_key
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.core.x402.verification import Reason
from tollkeeper.core.x402.version1 import SolanaPayload, payment_body, requirements_body
from tollkeeper.hub.accounts import unavailable
from tollkeeper.hub.api.requests import canonical_json
from tollkeeper.hub.evm.nonce_lanes import LaneView
from tollkeeper.hub.settlement.findings import ProvenTransition, Recovery, expected_transfer, seen
from tollkeeper.hub.settlement.flow import Settlements, terms_now
from tollkeeper.hub.settlement.orders import Before, SettleOutcome, refusal
from tollkeeper.hub.settlement.recovery import SettlementRecovery
from tollkeeper.hub.settlement.retry_alone import SecondTry
from tollkeeper.hub.settlement.signed_orders import SignedOrder, Signing, require_awaited
from tollkeeper.hub.solana.account import without_money
from tollkeeper.hub.solana.finality import FinalityWatch
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.hub.claim_bounds import Funds
from tollkeeper.storage.hub.claims import ClaimedSettlement, NewSettlement, SettlementRequest, claim_and_sign
from tollkeeper.storage.hub.settlements import Move, Settlement, find_settlement
from tollkeeper.storage.hub.transactions import open_lane, transactions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.evm.receipts import Sighting
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.solana import SolanaTransfer
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.hub.solana.account import SolanaAccount
    from tollkeeper.storage.hub.payers import Overdrawn
    from tollkeeper.storage.hub.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")
# Kept beside the payment, as the other family's end is kept in it: where the chain can hold the transaction.
_FIRST_SLOT: Final = "firstSlot"
_LAST_HEIGHT: Final = "lastValidBlockHeight"
# So long after its start what a hub has forgotten, restored from a backup, is not called too old by a node with a gap.
_FORGOTTEN_MS: Final = 3_600_000


def lifetime_of(row: Settlement) -> Lifetime:
    """Return the bounds within which the chain can hold the row's transaction.

    Raises: ValueError, KeyError, TypeError for no such row.
    """
    payment = json.loads(row.payment)
    return Lifetime(int(payment[_FIRST_SLOT]), int(payment[_LAST_HEIGHT]))


@dataclass(frozen=True, slots=True)
class SolanaTerms:
    """Bounds of where the chain can hold a transaction, and its payer's balance. Payments in `used` took part of that.

    `balance` None: it was carried out already, so what is left covers it or not. `fee_money`: what the fee payer may
    spend, in lamports; None as before.
    """

    lifetime: Lifetime
    balance: int | None
    fee_money: int | None
    used: frozenset[str] = frozenset()


class SolanaSigning(Signing):
    """Claims, co-signs and sends. What a transaction pays with stands in it: nothing is chosen here."""

    async def sign(self, order: Order, known: Settlement | None, row_id: str, ready: Any) -> SignedOrder:  # noqa: ANN401 - the terms
        """Claims and co-signs for an order, and begins to send. Raises: UNAVAILABLE, StorageError."""
        account: SolanaAccount = order.account
        transfer: SolanaTransfer = order.payload
        relayer = account.relayer_of(transfer.fee_payer)
        order.caller.look()

        def sign(_number: int, _won: Sequence[NewSettlement]) -> tuple[bytes, str]:
            require_awaited({row_id: order}, self._clock_ms())
            fee_payer = account.fee_payers.of(transfer.fee_payer)
            return fee_payer.co_sign(transfer.payload, account.asset, account.policy)

        wish = self._solana_wish(order, known, row_id, transfer, ready)
        relayer.in_flight += 1
        try:
            bounds = account.queue.bounds(self._funds(account, transfer, ready))
            unit = claim_and_sign([wish], sign, account.gas.budget(), bounds)
            (claim,) = await self._database.run_short(unit)
        except BaseException:
            relayer.in_flight -= 1
            raise
        if claim.outcome is not ClaimedSettlement.WON or claim.raw is None:
            relayer.in_flight -= 1
            return SignedOrder(claim, relayer)
        return SignedOrder(claim, relayer, self._send_soon(order.account, claim.raw))

    def _funds(self, account: SolanaAccount, transfer: SolanaTransfer, terms: SolanaTerms) -> Funds | None:
        if terms.fee_money is None:
            return None
        since_ms = self._clock_ms() - LIFETIME_DOUBTED_SECONDS * 1000
        return Funds(transfer.fee_payer, terms.fee_money, account.chain.config.fee_max_lamports, since_ms)

    def _solana_wish(
        self, order: Order, known: Settlement | None, row_id: str, transfer: SolanaTransfer, terms: SolanaTerms
    ) -> SettlementRequest:
        kept = {_FIRST_SLOT: terms.lifetime.first_slot, _LAST_HEIGHT: terms.lifetime.last_height}
        new = NewSettlement(
            id=row_id,
            key=order.key,
            kind=order.kind,
            pay_to=order.requirements.pay_to,
            value=transfer.value,
            payment=json.dumps({**payment_body(order.payment), **kept}, separators=(",", ":")),
            requirements=canonical_json(requirements_body(order.requirements)),
            requirements_hash=order.requirements_hash,
            confirm=order.options.confirm,
            purchase_data=None if order.purchase_data is None else canonical_json(order.purchase_data),
            signer=transfer.fee_payer,
            holder=self._membership.id,
            tenant=order.asker.tenant,
            now_ms=self._clock_ms(),
            alias=encode(transfer.transaction.signatures[1]),
        )
        wish = SettlementRequest(
            new, known, order.options.idempotency, is_trusted=order.asker.is_trusted, gas=fee_lamports(transfer)
        )
        return replace(wish, balance=terms.balance, used=terms.used)


class SolanaRecovery(Recovery):
    """Finds out what became of a transaction that is not seen, or was seen to fail."""

    async def find_out(self, account: Any, row: Settlement) -> ProvenTransition:  # noqa: ANN401 - a SolanaAccount
        """Return what the chain shows of the row; if it shows nothing, send again what can still be executed.

        Raises: RpcUnavailable, StorageError.
        """
        chain = account.chain
        raws = await transactions_of(self._database, row)
        if not raws:
            return ProvenTransition(row)
        raw = raws[0]
        (sighting,) = await chain.look([expected_transfer(row, chain.config.depths, raw.hash)])
        if sighting.verdict is Verdict.DOUBTED:
            return ProvenTransition(row)
        if sighting.verdict is Verdict.TRANSFERRED:
            move = seen(sighting, self._clock_ms())
            return ProvenTransition(row, None if move.to is row.state else move)
        if sighting.verdict is Verdict.REVERTED:
            failed = self._failed(Proof.SPENT, Reason.SVM_TRANSACTION_FAILED, sighting.block_number)
            return ProvenTransition(row, failed if sighting.deep else None)
        blockhash = encode_key(read_transaction(raw.raw).message.recent_blockhash)
        is_long_ago = self._clock_ms() - raw.created_ms >= LIFETIME_DOUBTED_SECONDS * 1000
        doubted_since = raw.created_ms // 1000 if is_long_ago else None
        if await has_expired(chain, raw.hash, blockhash, lifetime_of(row), doubted_since):
            return ProvenTransition(row, self._failed(Proof.EXPIRED, Reason.SVM_EXPIRED))
        return await self._sent_again(account, row, raw)

    def _failed(self, proof: Proof, reason: Reason, block_number: int | None = None) -> Move:
        return Move(
            State.FAILED,
            self._clock_ms(),
            block_number=block_number,
            proof=proof,
            error=reason.value,
            detail=proof.name,
            cost_gas=proof is Proof.SPENT,
            cost_nothing=proof is Proof.EXPIRED,
        )

    async def _sent_again(self, account: SolanaAccount, row: Settlement, raw: RawTransaction) -> ProvenTransition:
        submission = await account.chain.submit_to_all(raw.raw, raw.hash)
        if row.state is State.MINED:
            return ProvenTransition(row, Move(State.BROADCAST, self._clock_ms(), detail="no longer on the chain"))
        if submission is Submission.TAKEN and row.state is State.SIGNED:
            return ProvenTransition(row, Move(State.BROADCAST, self._clock_ms()))
        return ProvenTransition(row)


class SolanaSettlements(Settlements):
    """Settles orders on Solana."""

    # And whose transaction can be executed no more.
    _how_used_looks: ClassVar[frozenset[Reason]] = frozenset({Reason.DUPLICATE, Reason.SVM_EXPIRED})

    def __init__(self, *parts: Any) -> None:  # noqa: ANN401 - those of `Settlements`
        """Takes the parts of `Settlements`."""
        super().__init__(*parts)
        database, clock_ms, _, membership, metrics = parts
        self._began_ms = clock_ms()
        self._signing = SolanaSigning(database, clock_ms, membership)
        self.pipeline.recovery = SolanaRecovery(database, clock_ms, metrics, SecondTry(self._signing))

    async def open_lanes(self, account: Any) -> None:  # noqa: ANN401 - a SolanaAccount
        """Transactions are numbered here only to be told apart: the chain knows no such number."""
        for address in account.fee_payers.addresses:
            await self._database.run(open_lane(account.chain.network.name, address, 0))

    async def _simulate(self, order: Order) -> tuple[Reason | None, Any]:
        """Would the chain take the payment now, and until which block? Raises: RpcUnavailable."""
        account: SolanaAccount = order.account
        transfer: SolanaTransfer = order.payload
        simulated = await account.chain.simulate(transfer)
        relayer = account.relayer_of(transfer.fee_payer)
        relayer.purse.see(simulated.fee_money, 1)
        if simulated.error in FEE_PAYER_WITHOUT_MONEY or not relayer.can_pay():
            raise without_money()
        if account.chain.asset is None:  # disabled this moment
            raise RpcUnavailable(account.chain.problem)
        if simulated.error is not None or simulated.ends_too_soon or not simulated.reaches:
            facts = await account.chain.state(transfer, waits=False)
            for check in chain_checks(transfer, account.asset, facts):
                if not check.ok:
                    return check.reason, None
        return None, SolanaTerms(simulated.lifetime, simulated.balance, relayer.purse.spendable(simulated.fee_money))

    def _without_money(self) -> ApiError:
        return without_money()

    async def _terms_now(self, order: Order, terms: Any, overdrawn: Overdrawn) -> Any:  # noqa: ANN401 - `SolanaTerms`
        """Return the terms with the balance that is left of the payer's account now.

        A payment from another account takes nothing of it, nor does one that can be executed no more. Raises: as
        `terms_now`.
        """
        transfer: SolanaTransfer = order.payload

        async def held(hashes: Sequence[str]) -> tuple[int, list[bool]]:
            rows = [await find_settlement(self._database, replace(order.key, nonce=one)) for one in hashes]
            paying = {row.transaction_hash: row for row in rows if row and _is_paid_from(transfer.source, row)}
            found = await holding(order.account.chain, transfer.source, transfer.payer, list(paying))
            open_yet = {
                row.key.nonce
                for row, is_executed in zip(paying.values(), found.executed, strict=True)
                if not is_executed and found.height <= lifetime_of(row).last_height
            }
            return found.money, [one not in open_yet for one in hashes]

        return await terms_now(order, transfer.value, terms, overdrawn, held)

    def _is_the_row_s(self, order: Order, row: Settlement) -> bool:  # noqa: ARG002 - the message is its name
        """A payment is its message, which says whom it pays and how much."""
        return True

    async def before(self, account: Any, payment: Payment, reason: Reason) -> Before | None:  # noqa: ANN401 - a SolanaAccount
        """Return the earlier outcome of a payment: our books have what we settled, or else our signature names it.

        The signature is looked for only if nothing can be done with the payment any more. Nothing is told of what its
        payer did not sign: a former fee payer of ours is found before the payer's signature is looked at. Raises:
        UNAVAILABLE.
        """
        if reason is Reason.SVM_FEE_PAYER and not _is_signed(account, payment):
            return None
        key, transfer = account.identified(payment)
        row = await find_settlement(self._database, key)
        if row is not None and row.state is not State.FAILED:
            return Before(Reason.DUPLICATE, row.told_hash)
        if row is not None and row.error == Reason.SVM_TRANSACTION_FAILED:
            return Before(Reason.SVM_TRANSACTION_FAILED, row.told_hash)
        if reason not in self._how_used_looks:
            return None
        try:
            signature, sighting = await self._own_transaction(account, transfer)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        if sighting is not None:  # while nobody knows whether it failed, nobody is told to pay again
            told = Reason.SVM_TRANSACTION_FAILED if _has_failed(sighting) else Reason.DUPLICATE
            return Before(told, signature)
        return Before(Reason.DUPLICATE, "") if reason is Reason.DUPLICATE else None

    async def _forgotten(self, order: Order, known: Settlement | None, reason: Reason) -> SettleOutcome:
        """Settle a payment by what the chain shows of it: only we can have carried it out, and our signature names it.

        This waits until that is beyond doubt: a buyer who is refused for it pays twice.
        """
        account: SolanaAccount = order.account
        signature, sighting = await self._own_transaction(account, order.payload)
        if sighting is None:
            return await self._recorded_with_key(order, refusal(reason.value))
        if _has_failed(sighting):
            return await self._recorded_with_key(order, refusal(Reason.SVM_TRANSACTION_FAILED.value, signature))
        if sighting.verdict is not Verdict.TRANSFERRED or sighting.block_number is None:
            msg = "it is not shown yet what became of the payment's transaction"
            raise RpcUnavailable(msg)
        _, height, _ = await account.chain.head()
        lifetime = Lifetime(sighting.block_number, height + BLOCKHASH_LIFETIME_BLOCKS + LAG_BLOCKS)
        row_id = self._signing.settlement_id(known)
        _LOG.warning("transaction_adopted", settlement=row_id, transaction=signature)
        self._metrics.adopted.labels(order.key.network).inc()
        self._active.add(row_id)
        try:
            return await self._carry(order, known, row_id, SolanaTerms(lifetime, None, None))
        finally:
            self._active.discard(row_id)

    async def _own_transaction(self, account: SolanaAccount, transfer: SolanaTransfer) -> tuple[str, Sighting | None]:
        """Our signature, by which the chain names the payment's transaction, and what it shows of one that it lists.

        Raises: RpcUnavailable.
        No node is asked about the signature before it has named it itself: whoever has it can have the transaction
        executed, if what it said of the blockhash is a lie, and nothing of that would be in our books or count in a
        budget. What this process has begun is in the books; what a restored backup forgot was made before.
        """
        fee_payer = account.fee_payers.of(transfer.fee_payer)
        _, signature = fee_payer.co_sign(transfer.payload, account.asset, account.policy)
        is_young = self._clock_ms() - self._began_ms < _FORGOTTEN_MS
        if not await is_named(account.chain, transfer.payer, signature, by_whole=is_young):
            return signature, None
        (sighting,) = await account.chain.see([signature])
        return signature, sighting


def _is_paid_from(source: str, row: Settlement) -> bool:
    """Is a payment under way made from this account?"""
    transfer = transfer_of(SolanaPayload(json.loads(row.payment)["payload"]["transaction"]))
    return bool(row.transaction_hash) and transfer is not None and transfer.source == source


def _is_signed(account: SolanaAccount, payment: Payment) -> bool:
    """Is it a payment of this mint that its payer signed, whoever was to pay its fee?"""
    return all(check.ok for check in payer_checks(payment.transacted, account.asset))


def _has_failed(sighting: Sighting) -> bool:
    """Was it executed with an error, for good?"""
    return sighting.verdict is Verdict.REVERTED and sighting.deep


class SolanaCompleter(SettlementRecovery):
    """Finishes what no request carries forward, on Solana: no lanes, and finality in place of blocks' hashes."""

    def __init__(self, *parts: Any) -> None:  # noqa: ANN401 - those of `SettlementRecovery`
        """Takes the parts of `SettlementRecovery`."""
        super().__init__(*parts)
        database, _, _, clock_ms, membership, metrics, _ = parts
        self._finality = FinalityWatch(database, clock_ms, membership, metrics)

    async def _see_network(self, account: Any, *, thoroughly: bool) -> LaneView:  # noqa: ANN401, ARG002
        try:
            await self._finality.look(account)
        except (StorageError, RpcUnavailable):
            raise
        except Exception:  # noqa: BLE001 - rows do not wait for it
            _LOG.exception("blocks_not_understood", network=account.chain.network.name)
        return LaneView()

    def _needs_a_closer_look(self, row: Settlement, view: LaneView) -> bool:  # noqa: ARG002 - no lane to look at
        return True
