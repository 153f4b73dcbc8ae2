"""A transfer that failed in company is tried alone, once, before it is called failed (contract 5.2).

What made it fail may have been another's doing: a payer whose account burned the gas of all, or a batch that reverted
as a whole. So the proof that none of its transactions can carry it out any more is followed by a simulation: where the
chain would take the transfer now, it gets a transaction of its own, within the same attempt.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog

from tollkeeper.core.counterfactual import read_settling_call
from tollkeeper.core.errors import ApiError
from tollkeeper.core.families import row_of
from tollkeeper.core.signed_transactions import read_signed
from tollkeeper.core.transactions import State
from tollkeeper.core.wire import parse_payment
from tollkeeper.storage.database import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.wire import EvmPayload
    from tollkeeper.hub.accounts import Account
    from tollkeeper.hub.signing import Signing
    from tollkeeper.storage.settlements import Settlement
    from tollkeeper.storage.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")


class SecondTry:
    """Of one process."""

    def __init__(self, signing: Signing) -> None:
        self._signing = signing

    async def alone(self, account: Account, row: Settlement, raws: Sequence[RawTransaction]) -> Settlement | None:
        """The row under a transaction of its own, or as it was where that cannot be now; None for nothing to be tried.

        `raws`: all transactions of its attempt. Raises: RpcUnavailable, StorageError.
        """
        if row.state not in {State.SIGNED, State.BROADCAST} or any(_is_alone(raw, row) for raw in raws):
            return None
        payload = _payload(row)
        if payload is None:
            return None
        simulated = await account.chain.simulate(payload, account.caller, with_balance=False)
        if simulated.revert is not None:
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
        _LOG.warning("tried_alone", settlement=row.id, transaction=row.transaction_hash, by=again.transaction_hash)
        return again


def _is_alone(raw: RawTransaction, row: Settlement) -> bool:
    """Did that transaction carry nobody else's transfer? Its payer's deployment before it is the payer's own doing."""
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
