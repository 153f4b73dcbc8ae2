"""The engine in pure Python, for platforms that pyrevm has no wheel for: py-evm's Cancun state, without its blocks."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Final, cast

from eth.constants import BLANK_ROOT_HASH
from eth.db.atomic import AtomicDB
from eth.exceptions import InsufficientStack, InvalidInstruction, InvalidJumpDestination, OutOfGas, Revert
from eth.vm.execution_context import ExecutionContext
from eth.vm.forks.cancun.state import CancunState
from eth.vm.forks.cancun.transactions import CancunTransactionBuilder
from eth.vm.spoof import SpoofTransaction
from eth_typing import Address, BlockNumber, Hash32

from tollkeeper.sandbox.evm.engine import (
    BLOCK_GAS_LIMIT,
    COINBASE,
    BlockContext,
    EngineAccount,
    EngineLog,
    EngineMessage,
    EngineName,
    ExecutionOutcome,
    Result,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eth.abc import ComputationAPI, SignedTransactionAPI

_RECURSION_LIMIT: Final = 20_000
_MAX_REFUND_QUOTIENT: Final = 5  # EIP-3529
_HALTS: Final[dict[type[BaseException], str]] = {
    OutOfGas: "out of gas",
    InvalidInstruction: "invalid opcode",
    InvalidJumpDestination: "invalid jump destination",
    InsufficientStack: "stack underflow",
}


class PyEvmEngine:
    """`Engine` on py-evm."""

    name: Final = EngineName.PYEVM

    def __init__(self, chain_id: int) -> None:
        self._chain_id = chain_id
        self._database = AtomicDB()
        self._state = CancunState(self._database, _context(BlockContext(0, 0), chain_id), BLANK_ROOT_HASH)

    def account(self, address: str) -> EngineAccount:
        """An account's state."""
        key = _canonical(address)
        return EngineAccount(self._state.get_balance(key), self._state.get_nonce(key), self._state.get_code(key))

    def set_account(self, address: str, account: EngineAccount) -> None:
        """Put an account in place."""
        key = _canonical(address)
        self._state.set_balance(key, account.balance)
        self._state.set_nonce(key, account.nonce)
        self._state.set_code(key, account.code)
        self._state.lock_changes()

    def storage(self, address: str, slot: int) -> int:
        """One storage slot."""
        return self._state.get_storage(_canonical(address), slot)

    def set_storage(self, address: str, slot: int, value: int) -> None:
        """Put one storage slot in place."""
        self._state.set_storage(_canonical(address), slot, value)
        self._state.lock_changes()

    def call(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        """Execute, and leave the state as it was."""
        start = self._state.snapshot()
        try:
            return self._execute(message, block)
        finally:
            self._state.revert(start)

    def transact(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        """Execute, and keep what it changed."""
        try:
            return self._execute(message, block)
        finally:
            self._state.lock_changes()  # the next transaction starts cold

    def checkpoint(self) -> object:
        """The root of the state."""
        self._state.persist()
        return self._state.state_root

    def restore(self, checkpoint: object) -> None:
        """Open the state of that root."""
        self._state = CancunState(self._database, self._state.execution_context, cast("Hash32", checkpoint))

    def _execute(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        self._state.execution_context = _context(block, self._chain_id)
        sender = _canonical(message.sender)
        unsigned = CancunTransactionBuilder.new_unsigned_dynamic_fee_transaction(
            chain_id=self._chain_id,
            nonce=self._state.get_nonce(sender),
            max_priority_fee_per_gas=0,
            max_fee_per_gas=0,
            gas=message.gas,
            to=_canonical(message.to) if message.to else Address(b""),
            value=message.value,
            data=message.data,
            access_list=[],
        )
        # A spoofed transaction answers for the signed one: the chain has checked the signature already.
        transaction = cast("SignedTransactionAPI", SpoofTransaction(unsigned, from_=sender))
        with _deep_recursion():
            return _outcome(self._state.apply_transaction(transaction), message)


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """Room for calls within calls, each of which takes a dozen Python frames; only while contracts run."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


def _context(block: BlockContext, chain_id: int) -> ExecutionContext:
    return ExecutionContext(
        coinbase=_canonical(COINBASE),
        timestamp=block.timestamp_seconds,
        block_number=BlockNumber(block.number),
        difficulty=0,
        mix_hash=Hash32(bytes(32)),
        gas_limit=BLOCK_GAS_LIMIT,
        prev_hashes=(),
        chain_id=chain_id,
        base_fee_per_gas=0,
        excess_blob_gas=0,
    )


def _outcome(computation: ComputationAPI, message: EngineMessage) -> ExecutionOutcome:
    spent = message.gas - computation.get_gas_remaining()
    if computation.is_success:
        refunded = min(computation.get_gas_refund(), spent // _MAX_REFUND_QUOTIENT)
        created = "0x" + computation.msg.storage_address.hex() if message.to is None else None
        output = b"" if message.to is None else computation.output
        return ExecutionOutcome(Result.SUCCESS, output, spent - refunded, refunded, _logs(computation), created)
    if isinstance(computation.error, Revert):
        return ExecutionOutcome(Result.REVERTED, computation.output, spent)
    return ExecutionOutcome(
        Result.HALTED, b"", spent, reason=_HALTS.get(type(computation.error), str(computation.error))
    )


def _logs(computation: ComputationAPI) -> tuple[EngineLog, ...]:
    return tuple(
        EngineLog("0x" + address.hex(), tuple(f"0x{topic:064x}" for topic in topics), data)
        for address, topics, data in computation.get_log_entries()
    )


def _canonical(address: str) -> Address:
    return Address(bytes.fromhex(address[2:]))
