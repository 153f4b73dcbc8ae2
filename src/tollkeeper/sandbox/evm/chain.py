"""The sandbox's chain: blocks, fees, pool and time around an engine. A small Ethereum-like node without a network.

Every transaction is mined at once in a block of its own (`automine`), or when `mine` is called. The base fee stands
still until it is set. Only the newest state can be read. Nothing here is asynchronous, and one thread at a time may
call it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tollkeeper.sandbox.evm.blocks import Receipt, SealedBlock, seal_block
from tollkeeper.sandbox.evm.engine import (
    BLOCK_GAS_LIMIT,
    COINBASE,
    MAX_INIT_CODE_BYTES,
    BlockContext,
    EngineMessage,
    Result,
    floor_gas,
    intrinsic_gas,
)
from tollkeeper.sandbox.evm.transactions import CheckedTransaction, decode_transaction
from tollkeeper.sandbox.rpc_server import INVALID_PARAMS, ServedRpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tollkeeper.sandbox.evm.engine import Engine, ExecutionOutcome, GenesisAccount

# The sandbox chain's transaction pool: what was sent and is not mined yet, with a real node's rules for nonces. A
# transaction whose nonce lies ahead waits until the gap closes. One with the nonce of a waiting transaction replaces it
# for a tenth more in both fees.

_REPLACEMENT_PERCENT: Final = 110


class Pool:
    """Transactions by sender and nonce, in the order in which they came."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[int, CheckedTransaction]] = {}
        self._by_hash: dict[str, CheckedTransaction] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, transaction_hash: str) -> CheckedTransaction | None:
        """The waiting transaction of that hash."""
        return self._by_hash.get(transaction_hash)

    def add(self, transaction: CheckedTransaction) -> None:
        """Raises: RpcError where it is here already, or does not outbid the one it would replace."""
        if transaction.hash in self._by_hash:
            raise ServedRpcError("already known")
        queue = self._queues.setdefault(transaction.sender, {})
        waiting = queue.get(transaction.nonce)
        if waiting is not None:
            if not _outbids(transaction, waiting):
                raise ServedRpcError("replacement transaction underpriced")
            self.remove(waiting)
            queue = self._queues.setdefault(transaction.sender, {})
        queue[transaction.nonce] = transaction
        self._by_hash[transaction.hash] = transaction

    def remove(self, transaction: CheckedTransaction) -> None:
        """Forget one; nothing happens where it is not here."""
        if self._by_hash.pop(transaction.hash, None) is None:
            return
        queue = self._queues[transaction.sender]
        del queue[transaction.nonce]
        if not queue:
            del self._queues[transaction.sender]

    def next_nonce(self, sender: str, mined_nonce: int) -> int:
        """The first nonce that the sender has neither used nor waiting: eth_getTransactionCount at `pending`."""
        queue = self._queues.get(sender, {})
        while mined_nonce in queue:
            mined_nonce += 1
        return mined_nonce

    def ready(self, nonce_of: Callable[[str], int], base_fee_per_gas: int) -> Iterator[CheckedTransaction]:
        """Yield what the next block can take, first come first: each sender's unbroken run of nonces.

        Every transaction of it pays the base fee. Do not change the pool while reading this; take a list first.
        """
        expected: dict[str, int] = {}
        held: dict[str, dict[int, CheckedTransaction]] = {}
        for transaction in self._by_hash.values():
            sender = transaction.sender
            nonce = expected.setdefault(sender, nonce_of(sender))
            if transaction.nonce != nonce:
                held.setdefault(sender, {})[transaction.nonce] = transaction
                continue
            following: CheckedTransaction | None = transaction
            while following is not None and following.max_fee_per_gas >= base_fee_per_gas:
                yield following
                expected[sender] += 1
                following = held.get(sender, {}).pop(expected[sender], None)


def _outbids(newer: CheckedTransaction, older: CheckedTransaction) -> bool:
    return (
        newer.max_fee_per_gas * 100 >= older.max_fee_per_gas * _REPLACEMENT_PERCENT
        and newer.max_priority_fee_per_gas * 100 >= older.max_priority_fee_per_gas * _REPLACEMENT_PERCENT
    )


BASE_SEPOLIA_CHAIN_ID: Final = 84532
DEFAULT_BASE_FEE_PER_GAS: Final = 10_000_000
SUGGESTED_PRIORITY_FEE_PER_GAS: Final = 1_000_000
_REVERTED: Final = 3
_ERROR_SELECTOR: Final = bytes.fromhex("08c379a0")
_CALL_STIPEND: Final = 2300


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    state: object
    block_count: int
    mined: dict[str, tuple[SealedBlock, Receipt]]
    base_fee_per_gas: int
    automine: bool
    offset_seconds: int


class EmbeddedChain:
    """One chain. `clock_ms` tells the time that blocks are stamped with, in milliseconds since the epoch."""

    def __init__(
        self,
        engine: Engine,
        *,
        chain_id: int,
        genesis: Mapping[str, GenesisAccount],
        clock_ms: Callable[[], int],
    ) -> None:
        self.engine = engine
        self.chain_id = chain_id
        self.automine = True
        self.base_fee_per_gas = DEFAULT_BASE_FEE_PER_GAS
        self.pool = Pool()
        self._clock_ms = clock_ms
        self._offset_seconds = 0
        self._next_timestamp_seconds: int | None = None
        self._mined: dict[str, tuple[SealedBlock, Receipt]] = {}
        self._checkpoints: list[_Checkpoint] = []
        for address, planted in genesis.items():
            engine.set_account(address, planted.account)
            for slot, value in planted.storage.items():
                engine.set_storage(address, slot, value)
        self._blocks: list[SealedBlock] = []
        self._blocks.append(self._seal(()))
        self._block_numbers = {self.head.hash: 0}

    @property
    def head(self) -> SealedBlock:
        """The newest block."""
        return self._blocks[-1]

    def block(self, number: int) -> SealedBlock | None:
        """The block at that height."""
        return self._blocks[number] if 0 <= number < len(self._blocks) else None

    def block_of_hash(self, block_hash: str) -> SealedBlock | None:
        """The block of that hash, if it is on the chain."""
        number = self._block_numbers.get(block_hash)
        return None if number is None else self._blocks[number]

    def mined(self, transaction_hash: str) -> tuple[SealedBlock, Receipt] | None:
        """Block and receipt of a mined transaction."""
        return self._mined.get(transaction_hash)

    def next_nonce(self, address: str) -> int:
        """The nonce for the sender's next transaction, those that wait included."""
        return self.pool.next_nonce(address, self.engine.account(address).nonce)

    def send_raw(self, raw: bytes) -> str:
        """Take a signed transaction; mine where automining. Returns its hash. Raises: RpcError with a node's words."""
        try:
            transaction = decode_transaction(raw)
        except ValueError as error:
            raise ServedRpcError(f"failed to decode signed transaction: {error}", code=INVALID_PARAMS) from error
        if transaction.hash in self._mined:
            raise ServedRpcError("already known")
        self._check(transaction)
        self.pool.add(transaction)
        if self.automine:
            self.mine()
        return transaction.hash

    def mine(self) -> SealedBlock:
        """Seal one block of what is ready; an empty one where nothing is."""
        context = self._next_context()
        receipts: list[Receipt] = []
        gas_used = log_count = 0
        for transaction in list(self.pool.ready(self._nonce_of, self.base_fee_per_gas)):
            if gas_used + transaction.gas > BLOCK_GAS_LIMIT:
                break
            self.pool.remove(transaction)
            account = self.engine.account(transaction.sender)
            if account.nonce != transaction.nonce or account.balance < transaction.max_cost or account.code:
                continue  # what has happened since it was admitted took what it needed
            outcome = self._execute(transaction, context)
            gas_used += outcome.gas_used
            price = transaction.price_per_gas(self.base_fee_per_gas)
            receipts.append(Receipt(transaction, outcome, len(receipts), price, gas_used, log_count))
            log_count += len(outcome.logs)
        block = self._seal(tuple(receipts))
        self._blocks.append(block)
        self._block_numbers[block.hash] = block.number
        self._next_timestamp_seconds = None
        for receipt in receipts:
            self._mined[receipt.transaction.hash] = (block, receipt)
        return block

    def call(self, message: EngineMessage) -> ExecutionOutcome:
        """Execute on the newest state, as in a block sealed now, and change nothing. Raises: RpcError."""
        if self.engine.account(message.sender).balance < message.value:
            raise ServedRpcError("insufficient funds for transfer")
        needed = _least_gas(message.data, creation=message.to is None)
        if message.gas < needed:
            raise ServedRpcError(f"intrinsic gas too low: have {message.gas}, want {needed}")
        return _with_floor(self.engine.call(message, self._next_context()), message.data)

    def estimate_gas(self, message: EngineMessage) -> int:
        """The least gas (within 1.5 %) with which the message succeeds now. Raises: RpcError where none does."""
        outcome = self.call(message)
        raise_for_failure(outcome)
        lowest, highest = outcome.gas_used - 1, message.gas
        # A call keeps back a 64th of its gas, and refunds come at the end only: start from what covers both.
        attempt = (outcome.gas_used + outcome.gas_refunded + _CALL_STIPEND) * 64 // 63
        while highest - lowest > highest * 15 // 1000:
            attempt = min(attempt, highest)
            enough = attempt >= _least_gas(message.data, creation=message.to is None)
            if enough and self.call(replace(message, gas=attempt)).result is Result.SUCCESS:
                highest = attempt
            else:
                lowest = attempt
            attempt = (lowest + highest) // 2
        return highest

    def advance_time(self, seconds: int) -> int:
        """Move the chain's clock forward. Returns by how much it is ahead, in seconds."""
        self._offset_seconds += seconds
        return self._offset_seconds

    def set_next_timestamp(self, timestamp_seconds: int) -> None:
        """Stamp the next block so, and let time go on from there. Raises: RpcError for a time before the head."""
        if timestamp_seconds < self.head.timestamp_seconds:
            raise ServedRpcError("timestamp is before the newest block's", code=INVALID_PARAMS)
        self._next_timestamp_seconds = timestamp_seconds
        self._offset_seconds = timestamp_seconds - self._clock_ms() // 1000

    def checkpoint(self) -> int:
        """Remember the chain as it is now. Returns the checkpoint's number, from 1."""
        self._checkpoints.append(
            _Checkpoint(
                self.engine.checkpoint(),
                len(self._blocks),
                dict(self._mined),
                self.base_fee_per_gas,
                self.automine,
                self._offset_seconds,
            )
        )
        return len(self._checkpoints)

    def restore(self, number: int) -> bool:
        """Go back to a checkpoint, its clock and settings included. Returns whether there is such a checkpoint.

        It is used up with all later ones, and what was pending is forgotten.
        """
        if not 0 < number <= len(self._checkpoints):
            return False
        saved = self._checkpoints[number - 1]
        del self._checkpoints[number - 1 :]
        self.engine.restore(saved.state)
        for block in self._blocks[saved.block_count :]:
            del self._block_numbers[block.hash]
        del self._blocks[saved.block_count :]
        self._mined = saved.mined
        self.base_fee_per_gas = saved.base_fee_per_gas
        self.automine = saved.automine
        self._offset_seconds = saved.offset_seconds
        self._next_timestamp_seconds = None
        self.pool = Pool()
        return True

    def _check(self, transaction: CheckedTransaction) -> None:
        """The admission rules of a node's pool."""
        account = self.engine.account(transaction.sender)
        if transaction.chain_id != self.chain_id:
            message = f"invalid chain id for signer: have {transaction.chain_id} want {self.chain_id}"
        elif transaction.gas > BLOCK_GAS_LIMIT:
            message = "exceeds block gas limit"
        elif transaction.max_priority_fee_per_gas > transaction.max_fee_per_gas:
            message = "max priority fee per gas higher than max fee per gas"
        elif transaction.to is None and len(transaction.data) > MAX_INIT_CODE_BYTES:
            message = "max initcode size exceeded"
        elif account.code:
            message = f"sender not an eoa: address {transaction.sender}, len(code): {len(account.code)}"
        elif transaction.nonce < account.nonce:
            message = f"nonce too low: next nonce {account.nonce}, tx nonce {transaction.nonce}"
        elif transaction.gas < _least_gas(transaction.data, creation=transaction.to is None):
            message = "intrinsic gas too low"
        elif account.balance < transaction.max_cost:
            cost = transaction.max_cost
            message = f"insufficient funds for gas * price + value: balance {account.balance}, tx cost {cost}"
        else:
            return
        raise ServedRpcError(message)

    def _execute(self, transaction: CheckedTransaction, context: BlockContext) -> ExecutionOutcome:
        """Buy gas, run, give back what was left, and tip the miner. The base fee is burnt."""
        price = transaction.price_per_gas(self.base_fee_per_gas)
        self._credit(transaction.sender, -transaction.gas * price)
        message = EngineMessage(
            transaction.sender, transaction.to, transaction.data, transaction.gas, transaction.value
        )
        outcome = _with_floor(self.engine.transact(message, context), message.data)
        self._credit(transaction.sender, (transaction.gas - outcome.gas_used) * price)
        self._credit(COINBASE, outcome.gas_used * (price - self.base_fee_per_gas))
        return outcome

    def _credit(self, address: str, wei: int) -> None:
        account = self.engine.account(address)
        self.engine.set_account(address, replace(account, balance=account.balance + wei))

    def _nonce_of(self, address: str) -> int:
        return self.engine.account(address).nonce

    def _next_timestamp(self) -> int:
        if self._next_timestamp_seconds is not None:
            return self._next_timestamp_seconds
        now = self._clock_ms() // 1000 + self._offset_seconds
        return max(now, self.head.timestamp_seconds) if self._blocks else now

    def _next_context(self) -> BlockContext:
        return BlockContext(self.head.number + 1, self._next_timestamp())

    def _seal(self, receipts: tuple[Receipt, ...]) -> SealedBlock:
        return seal_block(
            self._blocks[-1] if self._blocks else None,
            timestamp_seconds=self._next_timestamp(),
            base_fee_per_gas=self.base_fee_per_gas,
            receipts=receipts,
            salt=secrets.token_bytes(8),
        )


def _least_gas(data: bytes, *, creation: bool) -> int:
    return max(intrinsic_gas(data, creation=creation), floor_gas(data))


def _with_floor(outcome: ExecutionOutcome, data: bytes) -> ExecutionOutcome:
    floor = floor_gas(data)
    return outcome if outcome.gas_used >= floor else replace(outcome, gas_used=floor)


def raise_for_failure(outcome: ExecutionOutcome) -> None:
    """Raises: RpcError as nodes answer eth_call: code 3 with the data for a revert, -32000 for a halt."""
    if outcome.result is Result.HALTED:
        raise ServedRpcError(outcome.reason)
    if outcome.result is Result.REVERTED:
        reason = revert_reason(outcome.output)
        message = "execution reverted" if reason is None else f"execution reverted: {reason}"
        raise ServedRpcError(message, code=_REVERTED, data="0x" + outcome.output.hex())


def revert_reason(output: bytes) -> str | None:
    """The text of `revert("…")`; None for custom errors and empty reverts."""
    if output[:4] != _ERROR_SELECTOR or len(output) < 68:
        return None
    length = int.from_bytes(output[36:68], "big")
    return output[68 : 68 + length].decode("utf-8", "replace")
