"""Keeps a signer's nonces moving: what everything signed later waits behind (contract 5.2; security F6, F7, A-25).

Stored transactions that the node does not have are sent again, in the order of their nonces, whatever became of their
rows; one whose fees became too low is replaced under the same nonce, with higher fees, up to the cap, and at last by a
transfer of nothing to the signer itself, which frees the nonce; one that pays enough and that all others wait behind
is replaced, too, each time after as long again: a node may have it and never mine it, nor pass it on. A nonce that
nothing was stored for is filled by such a transfer. Everything is stored before it is sent. One process at a time does
this for a signer: it holds the lane's lease, and what it stores is fenced by it. The others send what is their own and
no request of theirs carries, as what they took over: only they know that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.evm.chain import GasTooDear
from tollkeeper.core.evm.signed_transactions import raised, read_signed
from tollkeeper.core.settlement.states import State
from tollkeeper.hub.evm.batch import BatchCall
from tollkeeper.hub.settlement.family import PoolView
from tollkeeper.storage.hub.leases import LeaseLost
from tollkeeper.storage.hub.transactions import (
    RawTransaction,
    Stored,
    next_nonce_of,
    open_lane,
    replace_transaction,
    settlements_of,
    store_filler,
    stored_from,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.chains.evm.chain import Fees
    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.evm.signer import NetworkSigner
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.hub.signer_pool import Relayer
    from tollkeeper.storage.hub.leases import Lease

_LOG = structlog.get_logger("tollkeeper.hub")
_PAGE: Final = 500
_SENT_TOGETHER: Final = 100
# So many nonces at the front of a lane are looked at closely: what is behind them cannot be mined before they are.
_FRONT: Final = 16
# Longer than any request carries its own transaction forward.
STUCK_SECONDS: Final = 45
# How long the front of a lane stands still although it pays, before it is replaced for the first time.
UNMINED_SECONDS: Final = 45
# How long a transaction that the cap does not pay for keeps its nonce.
FREE_AFTER_SECONDS: Final = 600
_EMPTY_GAS: Final = 21_000


@dataclass(slots=True)
class LaneKeeper:
    """Keeper of the lanes of all networks of one hub process.

    `stuck_seconds`: the age at which a transaction may be replaced; `unmined_seconds`: the same for one that pays
    enough.
    """

    parts: SettlementParts
    is_carried: Callable[[str], bool]  # does a request of this process carry that settlement?
    stuck_seconds: float = STUCK_SECONDS
    unmined_seconds: float = UNMINED_SECONDS
    free_after_seconds: float = FREE_AFTER_SECONDS
    _mined: dict[tuple[str, str], int] = field(default_factory=dict)

    async def move(self, account: EvmAccount, relayer: Relayer[NetworkSigner]) -> PoolView:
        """Look at one signer, and do what it needs. Raises: RpcUnavailable, StorageError."""
        chain, signer = account.chain, relayer.signer.address
        network = chain.network.name
        mined = await chain.authorizations.nonce_of(signer, "latest")
        view, stored = PoolView(), await self._stored(network, signer, mined)
        view.waiting = {one.transaction.hash for one in stored}
        newest = _newest(stored)
        lease = await self.parts.membership.lease(f"lane:{network}:{signer}")
        if lease is None or not self.parts.membership.is_current():
            self._mined.pop((network, signer), None)
            own = {nonce: one for nonce, one in newest.items() if one.holder == self.parts.membership.id}
            await self._send(account, own, view)
            return view
        next_nonce = await next_nonce_of(self.parts.database, network, signer)
        if mined > next_nonce:
            agreed = await chain.agreed_nonce(signer)
            if agreed is None or agreed < mined:
                _LOG.error("nonces_doubted", network=network, signer=signer, stored=next_nonce, mined=mined)
                return view
            mined = agreed
            _LOG.error("nonces_used_elsewhere", network=network, signer=signer, stored=next_nonce, mined=mined)
            next_nonce = await self.parts.database.run(open_lane(network, signer, mined))
        first = next((one.transaction for one in stored if one.transaction.signer_nonce == mined), None)
        stood_still = self._mined.get((network, signer)) == mined
        self._mined[network, signer] = mined
        front = range(mined, min(next_nonce, mined + _FRONT))
        try:
            if stood_still:
                await self._repair(account, relayer, lease, front, newest, first)
        except LeaseLost:
            _LOG.warning("lane_taken_over", network=network, signer=signer)
            return view
        view.waiting |= {one.transaction.hash for one in newest.values()}
        await self._send(account, newest, view)
        if stood_still and first is not None and not self._is_new(first) and self.parts.membership.is_current():
            await chain.spread([newest[nonce].transaction.raw for nonce in front if nonce in newest])
        return view

    async def _stored(self, network: str, signer: str, mined: int) -> list[Stored]:
        """Return everything stored from that nonce on, in the order of nonce and age."""
        found: list[Stored] = []
        after: tuple[int, int, str] = (mined, -1, "")
        while page := await stored_from(self.parts.database, network, signer, after, _PAGE):
            found += page
            last = page[-1].transaction
            after = (last.signer_nonce, last.created_ms, last.hash)
            if len(page) < _PAGE:
                break
        return found

    async def _send(self, account: EvmAccount, newest: dict[int, Stored], view: PoolView) -> None:
        """Send what the node does not have, but for what somebody else is sending."""
        ours = [one.transaction for _, one in sorted(newest.items()) if not self._is_somebody_s(one)]
        for start in range(0, len(ours), _PAGE):
            part = ours[start : start + _PAGE]
            known = await account.chain.known_to_node([one.hash for one in part])
            view.taken |= known
            missing = [(one.raw, one.hash) for one in part if one.hash not in known]
            for first in range(0, len(missing), _SENT_TOGETHER):
                if not self.parts.membership.is_current():
                    return
                view.taken |= await account.chain.submit_all(missing[first : first + _SENT_TOGETHER])

    def _is_somebody_s(self, one: Stored) -> bool:
        """Say whether a request carries it, of this process or of another one that is alive."""
        if one.settlement_id is None:
            return False
        if one.holder == self.parts.membership.id:
            return self.is_carried(one.settlement_id)
        return self._is_new(one.transaction)

    def _is_new(self, raw: RawTransaction) -> bool:
        """Say whether it was signed just now. What is of much later than now is of a clock that was put back."""
        return abs(self.parts.clock_ms() - raw.created_ms) < self.stuck_seconds * 1000

    def _is_unmined(self, newest: RawTransaction, first: RawTransaction) -> bool:
        """Has the front of a lane, first signed as `first`, stood still for as long again as when it was signed last?

        A node may have a transaction that it will never mine, and calls the same one known for ever.
        """
        waited_ms = self.parts.clock_ms() - newest.created_ms
        return waited_ms >= max(self.unmined_seconds * 1000, newest.created_ms - first.created_ms)

    async def _repair(
        self,
        account: EvmAccount,
        relayer: Relayer[NetworkSigner],
        lease: Lease,
        front: range,
        newest: dict[int, Stored],
        first: RawTransaction | None,
    ) -> None:
        """Fill gaps at the front of a lane that stands still, and replaces what is stuck there. Raises: LeaseLost.

        `first`: what was signed first under the nonce that all others wait behind.
        """
        fees: tuple[Fees, int] | None = None
        for nonce in front:
            one = newest.get(nonce)
            if one is not None and self._is_new(one.transaction):
                continue
            fees = fees or await self._fees(account)
            if fees is None:
                return
            if one is None:
                filler = await self._fill(account, relayer, lease, nonce, fees[0])
                if filler is not None:
                    newest[nonce] = Stored(filler, None, None)
                continue
            is_unmined = nonce == front.start and first is not None and self._is_unmined(one.transaction, first)
            replaced = await self._replaced(account, relayer, lease, one.transaction, *fees, is_unmined=is_unmined)
            if replaced is not one.transaction:
                newest[nonce] = Stored(replaced, None, None)

    async def _fees(self, account: EvmAccount) -> tuple[Fees, int] | None:
        """Read today's fees under the whole cap, and base fee; None where gas costs more: nothing can be done."""
        block = await account.chain.latest_block()
        try:
            return await account.chain.fees(block.base_fee_wei, moves_nonce=True), block.base_fee_wei
        except GasTooDear as error:
            _LOG.error("lane_stuck_at_cap", network=account.chain.network.name, reason=str(error))
            return None

    async def _replaced(
        self,
        account: EvmAccount,
        relayer: Relayer[NetworkSigner],
        lease: Lease,
        raw: RawTransaction,
        fees: Fees,
        base_fee_wei: int,
        *,
        is_unmined: bool,
    ) -> RawTransaction:
        """Return the transaction to send: the same; one with higher fees; or one that only frees the nonce.

        `is_unmined`: it gets higher fees also where it pays enough, while the cap lasts.
        """
        old = read_signed(raw.raw).transaction
        frees_nonce = old.to == relayer.signer.address or await self._is_pointless(raw)
        tip = fees.max_priority_fee_per_gas
        pays = old.max_fee_per_gas >= base_fee_wei + tip and old.max_priority_fee_per_gas >= tip
        is_as_it_should_be = pays and not (frees_nonce and old.data)
        if is_as_it_should_be and not is_unmined:
            return raw
        config = account.chain.config
        # Nodes take a replacement only for more of both.
        tip = max(tip, raised(old.max_priority_fee_per_gas))
        least = max(raised(old.max_fee_per_gas), tip)
        cap = config.max_fee_per_gas_wei if frees_nonce else config.settlement_fee_cap_wei
        # A settlement that would still be too cheap is no better than one that cannot be replaced.
        needed = least if frees_nonce else max(least, base_fee_wei + fees.max_priority_fee_per_gas)
        if is_as_it_should_be and (needed > cap or not relayer.signer.may_sign(old)):
            return raw  # more cannot be done for it
        obstacle = "transaction_stuck_at_cap" if needed > cap else ""
        if not obstacle and not frees_nonce and not relayer.signer.may_sign(old):
            obstacle = "transaction_not_allowed_now"  # it was signed under another configuration
        if obstacle and not frees_nonce and self._keeps_nonce_too_long(raw):
            frees_nonce, cap = True, config.max_fee_per_gas_wei
            obstacle = "transaction_stuck_at_cap" if least > cap else ""
        if obstacle:
            _LOG.error(obstacle, network=raw.network, transaction=raw.hash)
            return raw
        fee = min(max(fees.max_fee_per_gas, least), cap)
        new = replace(old, max_fee_per_gas=fee, max_priority_fee_per_gas=tip)
        if frees_nonce:
            new = replace(new, to=relayer.signer.address, data=b"", gas=_EMPTY_GAS)
        data, transaction_hash = relayer.signer.sign(new)
        now_ms = self.parts.clock_ms()
        signed = RawTransaction(data, transaction_hash, raw.network, raw.signer, raw.signer_nonce, now_ms)
        budget = account.gas_budget.budget()
        unit = replace_transaction(lease, raw, signed, budget, gas=new.gas, frees_nonce=frees_nonce)
        if not await self.parts.database.run(unit):
            return raw
        _LOG.warning(
            "transaction_replaced",
            network=raw.network,
            transaction=raw.hash,
            by=signed.hash,
            max_fee_per_gas=fee,
            frees_nonce=frees_nonce,
        )
        return signed

    async def _is_pointless(self, raw: RawTransaction) -> bool:
        """Say whether everything that it was to settle failed by proof, so that it could only burn gas."""
        rows = await settlements_of(self.parts.database, raw.slot)
        return all(row.state is State.FAILED for row in rows)

    def _keeps_nonce_too_long(self, raw: RawTransaction) -> bool:
        return raw.created_ms <= self.parts.clock_ms() - self.free_after_seconds * 1000

    async def _fill(
        self, account: EvmAccount, relayer: Relayer[NetworkSigner], lease: Lease, nonce: int, fees: Fees
    ) -> RawTransaction | None:
        """Sign a transaction that uses up a nonce; None where the node or the store has one for it."""
        chain, signer = account.chain, relayer.signer.address
        if await chain.authorizations.nonce_of(signer, "pending") > nonce:
            return None
        nothing = BatchCall(signer, b"", _EMPTY_GAS)
        data, transaction_hash = relayer.signer.sign_call(nothing, nonce, fees)
        filler = RawTransaction(data, transaction_hash, chain.network.name, signer, nonce, self.parts.clock_ms())
        if not await self.parts.database.run(store_filler(lease, filler, account.gas_budget.budget(), gas=_EMPTY_GAS)):
            return None
        _LOG.error("nonce_gap_filled", network=chain.network.name, nonce=nonce, transaction=transaction_hash)
        self.parts.metrics.gaps_filled.labels(chain.network.name, signer).inc()
        return filler


def _newest(stored: list[Stored]) -> dict[int, Stored]:
    """Return what is to be sent under each nonce, of transactions in the order of nonce and age.

    No request carries a transaction that a lane's keeper stored in place of another.
    """
    newest: dict[int, Stored] = {}
    for one in stored:
        nonce = one.transaction.signer_nonce
        newest[nonce] = Stored(one.transaction, None, None) if nonce in newest else one
    return newest
