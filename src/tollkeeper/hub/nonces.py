"""Keeps a signer's nonces moving: what everything signed later waits behind (contract 5.2; security F6, F7, A-25).

While the mined count stands still: stored transactions are sent again, whatever became of their rows; one whose fees
became too low is replaced under the same nonce, with higher fees, up to the cap; a nonce that nothing was stored for is
filled by a transfer of nothing to the signer itself. A replacement is stored before it is sent, and every transaction
that was ever stored for a row counts for it: of those under one nonce only one can be mined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError
from tollkeeper.core.evm import Transaction, rlp_decode
from tollkeeper.storage.hub import RawTransaction, lane_of, raw_from_nonce, replace_transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.chains.evm import Fees
    from tollkeeper.hub.accounts import Account
    from tollkeeper.storage.database import Database

_LOG = structlog.get_logger("tollkeeper.hub")
_SENT_MAX: Final = 16
# Longer than any request carries its own transaction forward.
STUCK_SECONDS: Final = 45
_FILLER_GAS: Final = 21_000


@dataclass(slots=True)
class NonceKeeper:
    """Of all networks of one hub. `stuck_seconds`: how old a transaction is before it may be replaced."""

    database: Database
    clock_ms: Callable[[], int]
    stuck_seconds: float = STUCK_SECONDS
    mined: dict[str, int] | None = None

    async def move(self, account: Account) -> None:
        """One look at one network's signer. Raises: RpcUnavailable, StorageError."""
        chain, signer = account.chain, account.signer.address
        network = chain.network.name
        mined = await chain.mined_nonce(signer)
        before = self.mined or {}
        stood_still = before.get(network) == mined
        self.mined = {**before, network: mined}
        if not stood_still:
            return
        stored = _newest_by_nonce(await raw_from_nonce(self.database, network, signer, mined, 4 * _SENT_MAX))
        next_nonce = await lane_of(self.database, network, signer)
        fees = None
        for nonce in range(mined, min(next_nonce, mined + _SENT_MAX)):
            raw = stored.get(nonce)
            is_stuck = raw is not None and raw.created_ms <= self.clock_ms() - self.stuck_seconds * 1000
            if fees is None and (raw is None or is_stuck):
                fees = await self._fees(account)
            if raw is None:
                await self._fill(account, nonce, fees)
                continue
            if is_stuck and fees is not None:
                raw = await self._replaced(account, raw, *fees)
            await chain.submit(raw.raw, raw.hash)

    async def _fees(self, account: Account) -> tuple[Fees, int] | None:
        """Today's fees and base fee; None where gas costs more than the cap, so that nothing can be done."""
        block = await account.chain.latest_block()
        try:
            return await account.chain.fees(account.signer.address, block.base_fee_wei), block.base_fee_wei
        except RpcUnavailable as error:
            _LOG.warning("fees_unusable", network=account.chain.network.name, reason=str(error))
            return None

    async def _replaced(self, account: Account, raw: RawTransaction, fees: Fees, base_fee_wei: int) -> RawTransaction:
        """The transaction to send: the same, or one with higher fees where its own are too low for the next block."""
        old = read_transaction(raw.raw)
        tip = fees.max_priority_fee_per_gas
        if old.max_fee_per_gas >= base_fee_wei + tip and old.max_priority_fee_per_gas >= tip:
            return raw
        cap = account.chain.config.max_fee_per_gas_wei
        # Nodes take a replacement for at least a tenth more, of both.
        new = replace(
            old,
            max_fee_per_gas=max(fees.max_fee_per_gas, _raised(old.max_fee_per_gas)),
            max_priority_fee_per_gas=max(tip, _raised(old.max_priority_fee_per_gas)),
        )
        new = replace(new, max_fee_per_gas=max(new.max_fee_per_gas, new.max_priority_fee_per_gas))
        if new.max_fee_per_gas > cap:
            new = replace(new, max_fee_per_gas=cap)
            is_enough = cap >= _raised(old.max_fee_per_gas) and new.max_priority_fee_per_gas <= cap
            if not is_enough:
                _LOG.error("transaction_stuck_at_cap", network=account.chain.network.name, transaction=raw.hash)
                return raw
        data, transaction_hash = account.signer.sign(new, account.policy)
        signed = RawTransaction(data, transaction_hash, raw.signer_nonce, raw.settlement_id, self.clock_ms())
        if not await self.database.run(replace_transaction(raw, signed)):
            return raw
        _LOG.warning(
            "transaction_replaced",
            network=account.chain.network.name,
            transaction=raw.hash,
            by=signed.hash,
            max_fee_per_gas=new.max_fee_per_gas,
        )
        return signed

    async def _fill(self, account: Account, nonce: int, fees: tuple[Fees, int] | None) -> None:
        """Uses up a nonce that nothing was signed for, unless the node knows a transaction of it."""
        chain, signer = account.chain, account.signer.address
        if fees is None or await chain.pending_nonce(signer) > nonce:
            return
        try:
            account.gas.reserve(is_trusted=True)
        except ApiError:
            return
        nothing = Transaction(
            chain_id=account.policy.chain_id,
            nonce=nonce,
            max_priority_fee_per_gas=fees[0].max_priority_fee_per_gas,
            max_fee_per_gas=fees[0].max_fee_per_gas,
            gas=_FILLER_GAS,
            to=signer,
            value=0,
            data=b"",
        )
        raw, transaction_hash = account.signer.sign(nothing, account.policy)
        _LOG.error("nonce_gap_filled", network=chain.network.name, nonce=nonce, transaction=transaction_hash)
        await chain.submit(raw, transaction_hash)


def read_transaction(raw: bytes) -> Transaction:
    """What an EIP-1559 transaction of ours says. Raises: ValueError."""
    fields = rlp_decode(raw[1:])
    if raw[:1] != b"\x02" or not isinstance(fields, list) or len(fields) != 12:
        msg = "this is no EIP-1559 transaction"
        raise ValueError(msg)
    numbers = [int.from_bytes(field, "big") if isinstance(field, bytes) else 0 for field in fields]
    to, data = fields[5], fields[7]
    if not isinstance(to, bytes) or not isinstance(data, bytes):
        msg = "this is no EIP-1559 transaction"
        raise ValueError(msg)  # noqa: TRY004 - the bytes are wrong, not a Python type
    return Transaction(
        chain_id=numbers[0],
        nonce=numbers[1],
        max_priority_fee_per_gas=numbers[2],
        max_fee_per_gas=numbers[3],
        gas=numbers[4],
        to="0x" + to.hex(),
        value=numbers[6],
        data=data,
    )


def _raised(fee_wei: int) -> int:
    return fee_wei + fee_wei // 8 + 1


def _newest_by_nonce(stored: list[RawTransaction]) -> dict[int, RawTransaction]:
    """The transaction of each nonce that was signed last; they come in the order of nonce and age."""
    return {raw.signer_nonce: raw for raw in stored}
