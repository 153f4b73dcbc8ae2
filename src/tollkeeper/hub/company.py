"""Settlements that share a transaction: through which contract, who may come along, and what is called (contract 5.2).

A network's carrier is looked up when the network is opened and again and again after that: a contract is used while
its code is the right one. Accounts that have code go alone, and whether they have is asked right before signing: to
judge their signature the token calls them, and what they burn is taken from everybody in the transaction where the
contract does not bound it. When settlements go together is `gathering`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tollkeeper.chains.batcher import NO_CODE, Carrier, allowed_carriers, find_carrier, read_codes
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.batches import SignedTransfer, batch_gas, encode_batch, may_be_batched
from tollkeeper.core.evm import Transaction, transfer_calldata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.evm import EvmChain, EvmConfig, Fees
    from tollkeeper.core.wire import EvmPayload

_LOG = structlog.get_logger("tollkeeper.hub")


@dataclass(frozen=True, slots=True)
class Called:
    """What a transaction calls, with how much gas at most."""

    to: str
    data: bytes
    gas: int

    def transaction(self, chain_id: int, nonce: int, fees: Fees) -> Transaction:
        """The call as it is signed."""
        return Transaction(
            chain_id=chain_id,
            nonce=nonce,
            max_priority_fee_per_gas=fees.max_priority_fee_per_gas,
            max_fee_per_gas=fees.max_fee_per_gas,
            gas=self.gas,
            to=self.to,
            value=0,
            data=self.data,
        )


class Company:
    """Of one network. `carrier` is None while its settlements go alone."""

    def __init__(self, config: EvmConfig) -> None:
        self._network = config.network.name
        self._gas_limit = config.gas_limit
        self.allowed = allowed_carriers(config.batcher) if config.batch_queue_depth else ()
        self.carrier: Carrier | None = None

    async def look(self, chain: EvmChain) -> None:
        """Finds the carrier, or that there is none any more. Raises: RpcUnavailable."""
        found = await find_carrier(chain.rpc.ask, self.allowed) if self.allowed else None
        if found != self.carrier:
            told = {"network": self._network, "contract": found.address if found else None}
            _LOG.info("settlements_share_transactions" if found else "settlements_go_alone", **told)
        self.carrier = found

    def takes(self, payload: EvmPayload) -> bool:
        """Might this payment share a transaction?"""
        return self.carrier is not None and may_be_batched(_signed(payload))

    async def plain(self, chain: EvmChain, payloads: Sequence[EvmPayload]) -> list[bool]:
        """Of which payers it is sure now that they have no code."""
        payers = list(dict.fromkeys(payload.authorization.payer for payload in payloads))
        try:
            codes = await read_codes(chain.rpc.ask, payers)
        except RpcUnavailable:
            return [False] * len(payloads)
        plain = {payer for payer, code in zip(payers, codes, strict=True) if code == NO_CODE}
        return [payload.authorization.payer in plain for payload in payloads]

    def call(self, carrier: Carrier | None, asset: str, payloads: Sequence[EvmPayload]) -> Called:
        """One call that carries out all of these transfers; for a single one, or without a carrier, the token's own."""
        if len(payloads) == 1 or carrier is None:
            (payload,) = payloads
            return Called(asset, transfer_calldata(payload.authorization, payload.signature), self._gas_limit)
        data = encode_batch(carrier.via, asset, [_signed(payload) for payload in payloads])
        return Called(carrier.address, data, batch_gas(carrier.via, len(payloads)))

    def gas_of_each(self, carrier: Carrier | None, count: int) -> int:
        """What each of so many in one transaction counts in the hour's budget."""
        if count == 1 or carrier is None:
            return self._gas_limit
        return -(-batch_gas(carrier.via, count) // count)


def _signed(payload: EvmPayload) -> SignedTransfer:
    return SignedTransfer(payload.authorization, payload.signature)
