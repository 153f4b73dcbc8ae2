"""Calls that settlements' transactions make, and which settlements share one transaction (contract 5.2).

A settlement that goes alone calls the token. If its payer's wallet is not deployed yet it calls Multicall3, which calls
a factory that the operator listed and then the token (ERC-6492). A network's carrier is looked up when the network is
opened and again and again after that: a contract is used while its code is the right one. Accounts that have code go
alone, and whether they have code is asked right before signing: to judge their signature the token calls them, and the
gas that they burn is taken from everybody in the transaction where the contract does not bound it. `BatchWindow`
decides when settlements go together.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from tollkeeper.chains.evm.batcher import NO_CODE, Carrier, allowed_carriers, code_hash, find_carrier, read_codes
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.evm.batches import (
    MULTICALL_ADDRESS,
    MULTICALL_CODE_HASH,
    SignedTransfer,
    Via,
    batch_gas,
    encode_batch,
    may_be_batched,
)
from tollkeeper.core.evm.counterfactual import settling_call
from tollkeeper.core.evm.encoding import Transaction, is_counterfactual_signature

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.chain import EvmChain, Fees
    from tollkeeper.chains.evm.config import EvmConfig
    from tollkeeper.core.x402.version1 import EvmPayload

_LOG = structlog.get_logger("tollkeeper.hub")


@dataclass(frozen=True, slots=True)
class BatchCall:
    """Call of a transaction, with the most gas that it may use."""

    to: str
    data: bytes
    gas: int

    def transaction(self, chain_id: int, nonce: int, fees: Fees) -> Transaction:
        """Return the call as it is signed."""
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


class BatchPlanner:
    """Planner of one network's transactions. `carrier` is None while its settlements go alone.

    `factories`: those that are listed, each with why it cannot be called ("" if it can).
    """

    def __init__(self, config: EvmConfig) -> None:
        self._config = config
        self._network = config.network.name
        self.factories = dict.fromkeys(config.wallet_factories, "nobody has looked for it yet")
        self.allowed = allowed_carriers(config.batcher) if config.batch_queue_depth else ()
        self.carrier: Carrier | None = None
        self._misses_batcher = False

    async def look(self, chain: EvmChain) -> None:
        """Find the factories and the carrier, or that there are none any more.

        Raises: RpcUnavailable where the factories are not shown. Without word of a carrier settlements go as before.
        """
        factories = await self._found(chain)
        if factories != self.factories:
            self.factories = factories
            for factory, obstacle in factories.items():
                if obstacle:
                    where = {"network": self._network, "factory": factory}
                    _LOG.warning("wallet_factory_cannot_be_called", **where, reason=obstacle)
        try:
            found = await find_carrier(chain.rpc.ask, self.allowed) if self.allowed else None
        except RpcUnavailable:
            return
        misses_batcher = bool(self._config.batcher and self.allowed and (found is None or found.via is not Via.BATCHER))
        if misses_batcher and not self._misses_batcher:
            _LOG.warning("batcher_cannot_be_called", network=self._network, batcher=self._config.batcher)
        self._misses_batcher = misses_batcher
        if found != self.carrier:
            told = {"network": self._network, "contract": found.address if found else None}
            _LOG.info("settlements_share_transactions" if found else "settlements_go_alone", **told)
        self.carrier = found

    async def _found(self, chain: EvmChain) -> dict[str, str]:
        """Return the listed factories, each with why it cannot be called. Raises: RpcUnavailable."""
        listed = self._config.wallet_factories
        if not listed:
            return {}
        caller, *codes = await read_codes(chain.rpc.ask, [MULTICALL_ADDRESS, *listed])
        if code_hash(caller) != MULTICALL_CODE_HASH:
            return dict.fromkeys(listed, f"{self._network} has no Multicall3 at {MULTICALL_ADDRESS}")
        absent = f"{self._network} has no contract there"
        return {factory: absent if code == NO_CODE else "" for factory, code in zip(listed, codes, strict=True)}

    @property
    def obstacles(self) -> list[str]:
        """Why what is configured is not called, as it was when somebody looked last: factories, and the batcher."""
        instead = "settlements go alone" if self.carrier is None else "Multicall3 is called in its place"
        batcher = f"batcher {self._config.batcher} is not called: our contract is not there; {instead}"
        return [batcher] * self._misses_batcher + [
            f"payments that have the wallet factory {factory} deploy their wallets are refused: {obstacle}"
            for factory, obstacle in self.factories.items()
            if obstacle
        ]

    def takes(self, payload: EvmPayload) -> bool:
        """Say whether this payment might share a transaction."""
        return self.carrier is not None and may_be_batched(_signed(payload))

    async def plain(self, chain: EvmChain, payloads: Sequence[EvmPayload]) -> list[bool]:
        """Return for each payer if it is sure now that it has no code."""
        payers = list(dict.fromkeys(payload.authorization.payer for payload in payloads))
        try:
            codes = await read_codes(chain.rpc.ask, payers)
        except RpcUnavailable:
            return [False] * len(payloads)
        plain = {payer for payer, code in zip(payers, codes, strict=True) if code == NO_CODE}
        return [payload.authorization.payer in plain for payload in payloads]

    def call(self, carrier: Carrier | None, asset: str, payloads: Sequence[EvmPayload]) -> BatchCall:
        """Make the call that carries out all of these transfers; for one, or without a carrier, the token's own.

        Raises: ValueError for a signature that ends as ERC-6492's does and is none.
        """
        if len(payloads) == 1 or carrier is None:
            (payload,) = payloads
            call = settling_call(asset, payload.authorization, payload.signature)
            return BatchCall(call.to, call.data, self._config.gas_of(deploys=call.deploys))
        data = encode_batch(carrier.via, asset, [_signed(payload) for payload in payloads])
        return BatchCall(carrier.address, data, batch_gas(carrier.via, len(payloads)))

    def gas_of_each(self, carrier: Carrier | None, payloads: Sequence[EvmPayload]) -> int:
        """Return how much gas each of these in one transaction counts in the hour's budget."""
        count = len(payloads)
        if count == 1 or carrier is None:
            return self._config.gas_of(deploys=is_counterfactual_signature(payloads[0].signature))
        return -(-batch_gas(carrier.via, count) // count)


def _signed(payload: EvmPayload) -> SignedTransfer:
    return SignedTransfer(payload.authorization, payload.signature)


# Window in which settlements gather: some go alone, others wait for a batch (contract 5.2). While few settlements are
# under way nobody waits: each goes alone and at once. From a queue depth on, those that come within a moment of each
# other go together, as many as a batch holds; the first of them waits at most that moment. The caller decides how they
# are sent, and which must go alone.

T = TypeVar("T")
R = TypeVar("R")

# No payment waits longer for a batch. The timer is armed for less: what else the loop has to do comes on top.
WAIT_MAX_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 0.8 * WAIT_MAX_SECONDS


@dataclass(slots=True)
class BatchWindow(Generic[T, R]):
    """Batch window of one network. Not thread-safe: used from one event loop.

    `_under_way`: settlements that requests carry; one that goes alone is among them at once.
    `_go` answers each member in its place, or tells what it is to raise; what it raises itself, all are told.
    `_left` is given the part of one who did not wait for it.
    """

    _queue_depth: int
    _items_max: int
    _under_way: Callable[[], int]
    _go: Callable[[list[T]], Awaitable[Sequence[R | Exception]]]
    _left: Callable[[R], None]
    _waiting: list[tuple[T, asyncio.Future[R]]] = field(default_factory=list)
    _leaving: int = 0  # set out together, and perhaps not yet under way
    _timer: asyncio.TimerHandle | None = None
    _going: set[asyncio.Task[None]] = field(default_factory=set)

    async def join(self, member: T) -> R:
        """Go, alone or with others, and return this member's part. Raises: what `go` raises."""
        if self._under_way() + self._leaving + len(self._waiting) < self._queue_depth:
            (result,) = await self._go([member])
            if isinstance(result, Exception):
                raise result
            return result
        loop = asyncio.get_running_loop()
        place: asyncio.Future[R] = loop.create_future()
        self._waiting.append((member, place))
        if len(self._waiting) >= self._items_max:
            self._leave()
        elif self._timer is None:
            self._timer = loop.call_later(WAIT_SECONDS, self._leave)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._left(place.result())  # it came, and was not given to this member any more
            raise

    def _leave(self) -> None:
        """Send out all who wait, and have not gone away meanwhile."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        together = [(member, place) for member, place in self._waiting if not place.done()]
        self._waiting = []
        if together:
            self._leaving += len(together)
            task = asyncio.get_running_loop().create_task(self._travel(together))
            self._going.add(task)
            task.add_done_callback(self._going.discard)

    async def _travel(self, together: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._go([member for member, _ in together])
        except BaseException as error:
            for _, place in together:
                if not place.done():
                    place.set_exception(_for_all(error))
            if not isinstance(error, Exception):
                raise
            return
        finally:
            self._leaving -= len(together)
        for (_, place), result in zip(together, results, strict=True):
            if isinstance(result, Exception):
                if not place.done():
                    place.set_exception(result)
            elif place.done():
                self._left(result)
            else:
                place.set_result(result)


def _for_all(error: BaseException) -> Exception:
    """Return the error that each of the members is told."""
    return error if isinstance(error, Exception) else RuntimeError("settling was ended")
