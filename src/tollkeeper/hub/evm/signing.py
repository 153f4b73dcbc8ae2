"""From an order that the chain would take to a stored transaction (contract 5.2; security 5, A-24, A-25).

Claim, budget, nonce, signature and raw transaction are one commit. Orders that come while many are under way share a
transaction, where the network has a contract that carries several: one commit claims them all, and what was won is one
call.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import structlog

from tollkeeper.chains.sightings import Submission
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.evm.counterfactual import read_settling_call
from tollkeeper.core.evm.signed_transactions import read_signed
from tollkeeper.core.families import row_of
from tollkeeper.core.settlement.states import State
from tollkeeper.core.x402.version1 import parse_payment
from tollkeeper.hub.evm.batch import BatchWindow
from tollkeeper.hub.evm.nonce_lanes import STUCK_SECONDS
from tollkeeper.hub.settlement.family import Claimed, Outgoing
from tollkeeper.hub.settlement.orders import GivenUpError, require_awaited
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.hub.claims import (
    ClaimedSettlement,
    NewSettlement,
    Overtaken,
    SettlementRequest,
    adopt_and_sign,
    claim_and_sign,
    sign_again,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.chains.evm.batcher import Carrier
    from tollkeeper.chains.evm.chain import Fees
    from tollkeeper.core.evm.signed_transactions import SignedTransaction
    from tollkeeper.core.x402.version1 import EvmPayload
    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.evm.signer import NetworkSigner
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.hub.signer_pool import NamedSigner, Relayer
    from tollkeeper.storage.hub.claims import SettlementClaim
    from tollkeeper.storage.hub.settlements import Settlement
    from tollkeeper.storage.hub.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")

EvmOrder: TypeAlias = "Order[EvmAccount, EvmPayload]"


@dataclass(frozen=True, slots=True)
class FeeTerms:
    """The payment as it is carried out now, the fees that it may pay per gas, and its payer's balance.

    Authorizations of the payer's in `used` took part of the balance.
    """

    payload: EvmPayload
    fees: Fees
    balance: int
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Ready:
    """An order that the chain would take, and the row that it will have."""

    order: EvmOrder
    known: Settlement | None
    row_id: str
    terms: FeeTerms


class EvmSigning:
    """Signing of one process."""

    def __init__(self, parts: SettlementParts) -> None:
        self._parts = parts
        self._windows: dict[str, BatchWindow[_Ready, Claimed]] = {}

    async def claim(self, order: EvmOrder, known: Settlement | None, row_id: str, terms: FeeTerms) -> Claimed:
        """Claim and sign for an order, perhaps with others. Raises: UNAVAILABLE, StorageError."""
        ready = _Ready(order, known, row_id, terms)
        if not order.account.planner.takes(terms.payload):
            (claimed,) = await self._together(order.account, [ready], None)
            return claimed
        return await self._window(order.account).join(ready)

    def _window(self, account: EvmAccount) -> BatchWindow[_Ready, Claimed]:
        config = account.chain.config
        window = self._windows.get(config.network.name)
        if window is None:
            window = BatchWindow(
                config.batch_queue_depth,
                config.batch_items_max,
                lambda: sum(relayer.in_flight for relayer in account.signers.relayers),
                lambda party: self._set_out(account, party),
                lambda claimed: self._abandoned(account, claimed),
            )
            self._windows[config.network.name] = window
        return window

    def _abandoned(self, account: EvmAccount, claimed: Claimed) -> None:
        """Send what was signed for a caller who has left; recovery follows it."""
        if claimed.outgoing is not None:
            self._parts.sender.send(account, claimed.outgoing)
            claimed.let_go()

    async def _set_out(self, account: EvmAccount, party: list[_Ready]) -> list[Claimed | Exception]:
        """Sign one transaction for those whose accounts have no code, and one for each of the others."""
        if len(party) == 1:
            return [*await self._together(account, party, None)]
        carrier = account.planner.carrier
        plain = [False] * len(party)
        if carrier is not None:
            plain = await account.planner.plain(account.chain, [ready.terms.payload for ready in party])
        groups = [[ready] for ready, is_plain in zip(party, plain, strict=True) if not is_plain]
        together = [ready for ready, is_plain in zip(party, plain, strict=True) if is_plain]
        # Where no signer's money lasts for all of them, it may last for some.
        is_affordable = account.signers.can_pay(len(together))
        groups += [together] if together and is_affordable else [[ready] for ready in together]
        outcomes: dict[str, Claimed | Exception] = {}

        async def go(group: list[_Ready]) -> None:
            try:
                claimed: Sequence[Claimed | Exception] = await self._together(account, group, carrier)
            except GivenUpError as late:  # the others go without them
                outcomes.update((ready.row_id, late) for ready in group if ready.row_id in late.rows)
                if left := [ready for ready in group if ready.row_id not in late.rows]:
                    await go(left)
                return
            except Exception as error:  # noqa: BLE001 - told to those whom it concerns
                claimed = [error] * len(group)
            outcomes.update(zip((ready.row_id for ready in group), claimed, strict=True))

        await asyncio.gather(*(go(group) for group in groups))
        return [outcomes[ready.row_id] for ready in party]

    async def _together(
        self,
        account: EvmAccount,
        party: Sequence[_Ready],
        carrier: Carrier | None,
        but: Collection[Relayer[NamedSigner]] = (),
    ) -> list[Claimed]:
        """Sign one transaction for all of them that are won, by none of some signers.

        Raises: UNAVAILABLE, StorageError; GivenUpError.
        """
        gas = account.planner.gas_of_each(carrier, [ready.terms.payload for ready in party])
        # Money is counted in settlements: one that deploys its payer's wallet costs as much as several.
        count = len(party) * -(-gas // account.chain.config.gas_limit)
        relayer = account.signers.pick(count, but)
        for ready in party:
            ready.order.request.caller.look()
        relayer.in_flight += len(party)
        try:
            claims = await self._committed(account, party, carrier, relayer, gas)
        except BaseException:
            relayer.in_flight -= len(party)
            raise
        promised = [*but, relayer]
        if all(claim.outcome is ClaimedSettlement.NO_FUNDS for claim in claims) and account.signers.can_pay(
            count, promised
        ):
            relayer.in_flight -= len(party)
            return await self._together(account, party, carrier, promised)
        shared = next((Outgoing(claim.raw) for claim in claims if claim.raw is not None), None)
        claimed: list[Claimed] = []
        for claim in claims:
            is_won = claim.outcome is ClaimedSettlement.WON
            relayer.in_flight -= not is_won
            claimed.append(Claimed(claim, relayer, shared if is_won else None))
        return claimed

    async def _committed(
        self,
        account: EvmAccount,
        party: Sequence[_Ready],
        carrier: Carrier | None,
        relayer: Relayer[NetworkSigner],
        gas: int,
    ) -> list[SettlementClaim]:
        """Claim and sign for a party in one commit. `gas`: of each of them. Raises: StorageError; GivenUpError."""
        fees = max((ready.terms.fees for ready in party), key=lambda fees: fees.max_fee_per_gas)
        by_row = {ready.row_id: ready for ready in party}

        def sign(nonce: int, won: Sequence[NewSettlement]) -> tuple[bytes, str]:
            require_awaited({new.id: by_row[new.id].order for new in won}, self._parts.clock_ms())
            payloads = [by_row[new.id].terms.payload for new in won]
            called = account.planner.call(carrier, won[0].key.asset, payloads)
            return relayer.signer.sign_call(called, nonce, fees)

        signer = relayer.signer.address
        requests = [
            replace(
                self._request(ready.order, ready.known, ready.row_id, signer, gas),
                balance=ready.terms.balance,
                used=ready.terms.used,
            )
            for ready in party
        ]
        config = account.chain.config
        bounds = account.admission.bounds(relayer.balance.funds(config.gas_of(deploys=bool(config.wallet_factories))))
        unit = claim_and_sign(requests, sign, account.gas_budget.budget(), bounds)
        return await self._parts.database.run(unit, is_short=len(requests) == 1)

    # A transfer that failed in a batch, or waits for a key that is gone, gets one more transaction (contract 5.2).
    # What made it fail may have been another's doing: a payer whose account burned the gas of all, or a batch that
    # reverted as a whole. So the proof that none of its transactions can carry it out any more is followed by a
    # simulation: where the chain would take the transfer now, it gets a transaction of its own, within the same
    # attempt. Nobody replaces what a key signed that is configured no more. Where that is too cheap for the chain, one
    # of ours carries the same authorization, which moves money once: whichever is mined second reverts, and costs its
    # gas. So there is one such transaction at most, and none while the former one may be mined in the next block.

    async def _sign_alone(
        self, account: EvmAccount, row: Settlement, payload: EvmPayload, fees: Fees
    ) -> Settlement | None:
        """Sign another transaction for a row, which carries its transfer alone, and begin to send it.

        None where the hour's gas is used up, or somebody else has moved the row. Raises: UNAVAILABLE, StorageError.
        """
        relayer = account.signers.pick()
        called = account.planner.call(None, row.key.asset, [payload])

        def sign(nonce: int) -> tuple[bytes, str]:
            return relayer.signer.sign_call(called, nonce, fees)

        unit = sign_again(row, relayer.signer.address, sign, account.gas_budget.budget(), gas=called.gas)
        try:
            again = await self._parts.database.run(unit)
        except Overtaken:
            return None
        if again is None:
            return None
        self._parts.sender.send(account, Outgoing(again.raw))
        return again.settlement

    async def try_alone(
        self, account: EvmAccount, row: Settlement, raws: Sequence[RawTransaction]
    ) -> Settlement | None:
        """Sign a batch member as a transaction of its own: its new row; the same row where that cannot be now.

        `raws`: all transactions of its attempt. Raises: RpcUnavailable, StorageError.
        """
        if row.state not in {State.SIGNED, State.BROADCAST} or any(_is_alone(raw, row) for raw in raws):
            return None
        return await self._tried(account, row, "tried_alone")

    async def try_for_former_signers(
        self, account: EvmAccount, row: Settlement, raws: Sequence[RawTransaction], now_ms: int
    ) -> Settlement | None:
        """Do the same where all of its transactions are of keys that are gone, and none pays what a block asks.

        Raises: RpcUnavailable, StorageError.
        """
        if row.state not in {State.SIGNED, State.BROADCAST} or any(account.signers.holds(raw.signer) for raw in raws):
            return None
        if not raws or any(now_ms - raw.created_ms < STUCK_SECONDS * 1000 for raw in raws):
            return None
        most_wei = max(read_signed(raw.raw).transaction.max_fee_per_gas for raw in raws)
        return await self._tried(account, row, "carried_for_former_signer", above_wei=most_wei)

    async def _tried(self, account: EvmAccount, row: Settlement, event: str, above_wei: int = -1) -> Settlement | None:
        payload = _payload(row)
        if payload is None:
            return None
        simulated = await account.chain.simulate(payload, account.caller, with_balance=False)
        if simulated.revert is not None or simulated.block.base_fee_wei <= above_wei:
            return None
        fees = await account.chain.fees(simulated.block.base_fee_wei)
        try:
            again = await self._sign_alone(account, row, payload, fees)
        except StorageError:
            raise
        except ApiError:
            return row  # there is no gas money now
        if again is None:
            return row
        _LOG.warning(event, settlement=row.id, transaction=row.transaction_hash, by=again.transaction_hash)
        return again

    async def adopt(self, order: EvmOrder, known: Settlement | None, row_id: str, found: SignedTransaction) -> Claimed:
        """Claim an order for a transaction of one of our signers that the database does not remember.

        Raises: StorageError.
        """
        relayer = order.account.signers.of(found.sender)
        request = self._request(order, known, row_id, found.sender, gas=0)
        claim = await self._parts.database.run(adopt_and_sign(request, found.raw, found.hash, found.transaction.nonce))
        if claim.outcome is not ClaimedSettlement.WON or claim.raw is None:
            return Claimed(claim, relayer)
        relayer.in_flight += 1
        sent: asyncio.Future[Submission] = asyncio.get_running_loop().create_future()
        sent.set_result(Submission.UNCLEAR)  # the nodes have it: it is on the chain
        return Claimed(claim, relayer, Outgoing(claim.raw, sent))

    def _request(
        self, order: EvmOrder, known: Settlement | None, row_id: str, signer: str, gas: int
    ) -> SettlementRequest:
        authorization = order.payload.authorization
        return self._parts.claim_of(
            order, known, row_id, pay_to=authorization.pay_to, value=authorization.value, signer=signer, gas=gas
        )


def _is_alone(raw: RawTransaction, row: Settlement) -> bool:
    """Say whether that transaction carried nobody else's transfer. Its payer's deployment is the payer's own doing."""
    transaction = read_signed(raw.raw).transaction
    if transaction.to == row.key.asset:
        return True
    try:
        read_settling_call(transaction.data)
    except ValueError:
        return False
    return True


def _payload(row: Settlement) -> EvmPayload | None:
    try:
        payment = parse_payment(json.loads(row.payment))
    except (ApiError, ValueError):
        return None
    return payment.authorized if row_of(payment).has_contracts else None
