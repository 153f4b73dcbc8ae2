"""A transfer that failed in a batch, or waits for a key that is gone, gets one more transaction (contract 5.2).

What made it fail may have been another's doing: a payer whose account burned the gas of all, or a batch that reverted
as a whole. So the proof that none of its transactions can carry it out any more is followed by a simulation: where the
chain would take the transfer now, it gets a transaction of its own, within the same attempt.

Nobody replaces what a key signed that is configured no more. Where that is too cheap for the chain, one of ours carries
the same authorization, which moves money once: whichever is mined second reverts, and costs its gas. So there is one
such transaction at most, and none while the former one may be mined in the next block.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.evm.counterfactual import read_settling_call
from tollkeeper.core.evm.signed_transactions import read_signed
from tollkeeper.core.families import row_of
from tollkeeper.core.settlement.states import State
from tollkeeper.core.x402.version1 import parse_payment
from tollkeeper.hub.evm.nonce_lanes import STUCK_SECONDS
from tollkeeper.storage.engine.database import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.x402.version1 import EvmPayload
    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.evm.signing import EvmSigning
    from tollkeeper.storage.hub.settlements import Settlement
    from tollkeeper.storage.hub.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")


class SecondTry:
    """Second tries of one process."""

    def __init__(self, signing: EvmSigning) -> None:
        self._signing = signing

    async def alone(self, account: EvmAccount, row: Settlement, raws: Sequence[RawTransaction]) -> Settlement | None:
        """Sign a batch member as a transaction of its own: its new row; the same row where that cannot be now.

        `raws`: all transactions of its attempt. Raises: RpcUnavailable, StorageError.
        """
        if row.state not in {State.SIGNED, State.BROADCAST} or any(_is_alone(raw, row) for raw in raws):
            return None
        return await self._tried(account, row, "tried_alone")

    async def for_former_signers(
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
            again = await self._signing.sign_alone(account, row, payload, fees)
        except StorageError:
            raise
        except ApiError:
            return row  # there is no gas money now
        if again is None:
            return row
        _LOG.warning(event, settlement=row.id, transaction=row.transaction_hash, by=again.transaction_hash)
        return again


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
