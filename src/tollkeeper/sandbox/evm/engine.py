"""Interface of an EVM for the sandbox's chain, with two engines behind it.

An engine holds the world's state and executes one message at a time under the rules of the Cancun fork, with gas used
as on a real chain (every transaction starts cold). It knows no blocks, signatures, pool or fees: those are the chain's
(`evm.chain`). The gas price that contracts see is 0 in both engines, since the chain charges the fee itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

TRANSACTION_GAS: Final = 21_000
_CREATION_GAS: Final = 32_000
_ZERO_BYTE_GAS: Final = 4
_BYTE_GAS: Final = 16
_INIT_CODE_WORD_GAS: Final = 2
_FLOOR_TOKEN_GAS: Final = 10
MAX_INIT_CODE_BYTES: Final = 49_152
BLOCK_GAS_LIMIT: Final = 30_000_000
COINBASE: Final = "0x00000000000000000000000000000000000c0ffe"


class EngineName(StrEnum):
    """`revm` is native and fast, `pyevm` is pure Python and runs wherever Python does."""

    REVM = "revm"
    PYEVM = "pyevm"


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """One account's state, its storage apart. `balance` is wei."""

    balance: int = 0
    nonce: int = 0
    code: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A call, or (where `to` is None) a contract's creation. Addresses are lower-case hex, `value` is wei."""

    sender: str
    to: str | None
    data: bytes
    gas: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class BlockContext:
    """Facts about its block that a contract can read."""

    number: int
    timestamp_seconds: int


@dataclass(frozen=True, slots=True)
class EngineLog:
    """One event. `address` and `topics` are lower-case hex."""

    address: str
    topics: tuple[str, ...]
    data: bytes


class Result(StrEnum):
    """How an execution ended. HALTED used all its gas: out of gas, or an invalid instruction."""

    SUCCESS = "success"
    REVERTED = "reverted"
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """Effects of an execution. `reason` names a halt as nodes do; `gas_refunded` is already taken off `gas_used`."""

    result: Result
    output: bytes
    gas_used: int
    gas_refunded: int = 0
    logs: tuple[EngineLog, ...] = ()
    created: str | None = None
    reason: str = ""


class Engine(Protocol):
    """The world's state, and the execution of messages on it.

    The sender must afford `value`, and `gas` must cover `intrinsic_gas`: the chain has checked both.
    """

    @property
    def name(self) -> EngineName:
        """Name of this engine."""

    def account(self, address: str) -> EngineAccount:
        """An account's state; the empty one where there is none."""

    def set_account(self, address: str, account: EngineAccount) -> None:
        """Put an account in place, its storage left as it is."""

    def storage(self, address: str, slot: int) -> int:
        """One storage slot; 0 where nothing was stored."""

    def set_storage(self, address: str, slot: int, value: int) -> None:
        """Put one storage slot in place."""

    def call(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        """Execute, and leave the state as it was."""

    def transact(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        """Execute and keep what it changed; the sender's nonce advances however it ended."""

    def checkpoint(self) -> object:
        """A token of the state as it is now, for `restore`, any number of times."""

    def restore(self, checkpoint: object) -> None:
        """Make the state what it was at the checkpoint."""


def floor_gas(data: bytes) -> int:
    """The least that a transaction with this data uses, however little it does (EIP-7623)."""
    return TRANSACTION_GAS + _FLOOR_TOKEN_GAS * (4 * len(data) - 3 * data.count(0))


def intrinsic_gas(data: bytes, *, creation: bool) -> int:
    """Gas that a transaction costs before its first instruction (EIP-2028, EIP-3860)."""
    zeros = data.count(0)
    gas = TRANSACTION_GAS + zeros * _ZERO_BYTE_GAS + (len(data) - zeros) * _BYTE_GAS
    if creation:
        gas += _CREATION_GAS + (len(data) + 31) // 32 * _INIT_CODE_WORD_GAS
    return gas


@dataclass(frozen=True, slots=True)
class GenesisAccount:
    """An account that is there from the first block on."""

    account: EngineAccount
    storage: Mapping[int, int]
