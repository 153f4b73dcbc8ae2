"""The native engine: revm through `pyrevm`.

pyrevm keeps one journal open for ever: left alone, what one transaction touched stays warm for the next, and gas comes
out too low. So every message runs inside a checkpoint that is taken back, and what it wrote is read from the journal
first and put into the database below, where it is cold for the next one. A copy of that database is kept here, since
reading through pyrevm would warm accounts too, and for `checkpoint`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import pyrevm

from tollkeeper.core.evm.encoding import keccak256
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

_SPEC: Final = "CANCUN"
_OUTPUT: Final = re.compile(r"output: 0x([0-9a-f]*)")
_WRITTEN_SLOT: Final = re.compile(
    r"(?<!Transient)StorageChange \{ address: (0x[0-9a-f]{40}), key: (\d+), had_value: Some"
)
_CHANGED_ACCOUNT: Final = re.compile(
    r"(?:AccountTouched|NonceChange|CodeChange|AccountCreated) \{ address: (0x[0-9a-f]{40})"
)
_EMPTY: Final = EngineAccount()
_CODE_PADDING_BYTES: Final = 33
_HALTS: Final = {
    "OutOfGas(Basic)": "out of gas",
    "OpcodeNotFound": "invalid opcode",
    "InvalidFEOpcode": "invalid opcode",
    "StackUnderflow": "stack underflow",
    "StackOverflow": "stack limit reached",
    "InvalidJump": "invalid jump destination",
}


@dataclass(frozen=True, slots=True)
class _World:
    accounts: dict[str, EngineAccount]
    slots: dict[tuple[str, int], int]


class RevmEngine:
    """`Engine` on revm."""

    name: Final = EngineName.REVM

    def __init__(self, chain_id: int) -> None:
        self._chain_id = chain_id
        self._evm = _new_evm(chain_id)
        self._accounts: dict[str, EngineAccount] = {}
        self._slots: dict[tuple[str, int], int] = {}

    def account(self, address: str) -> EngineAccount:
        """An account's state."""
        return self._accounts.get(address, _EMPTY)

    def set_account(self, address: str, account: EngineAccount) -> None:
        """Put an account in place."""
        self._accounts[address] = account
        self._evm.insert_account_info(address, _account_info(account))

    def storage(self, address: str, slot: int) -> int:
        """One storage slot."""
        return self._slots.get((address, slot), 0)

    def set_storage(self, address: str, slot: int, value: int) -> None:
        """Put one storage slot in place."""
        self._slots[address, slot] = value
        _insert_slot(self._evm, address, slot, value)

    def call(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        """Execute, and leave the state as it was."""
        self._enter(block)
        sender = self.account(message.sender)
        if sender.code:  # a contract may ask, though it cannot send: revm refuses both (EIP-3607)
            self._evm.insert_account_info(message.sender, _account_info(replace(sender, code=b"")))
        start = self._evm.snapshot()
        try:
            return self._execute(message)
        finally:
            self._evm.revert(start)
            if sender.code:
                self._evm.insert_account_info(message.sender, _account_info(sender))

    def transact(self, message: EngineMessage, block: BlockContext) -> ExecutionOutcome:
        """Execute, and keep what it changed."""
        self._enter(block)
        start = self._evm.snapshot()
        try:
            outcome = self._execute(message)
            accounts, slots = self._written() if outcome.result is Result.SUCCESS else ({}, {})
        finally:
            self._evm.revert(start)
        sender = accounts.get(message.sender, self.account(message.sender))
        accounts[message.sender] = replace(sender, nonce=self.account(message.sender).nonce + 1)
        for address, account in accounts.items():
            if account != self.account(address):
                self.set_account(address, account)
        for (address, slot), value in slots.items():
            self.set_storage(address, slot, value)
        return outcome

    def checkpoint(self) -> object:
        """A copy of the state."""
        return _World(dict(self._accounts), dict(self._slots))

    def restore(self, checkpoint: object) -> None:
        """Build a new journal from the copy."""
        world = cast("_World", checkpoint)
        self._accounts = {}
        self._slots = {}
        self._evm = _new_evm(self._chain_id)
        for address, account in world.accounts.items():
            self.set_account(address, account)
        for (address, slot), value in world.slots.items():
            self.set_storage(address, slot, value)

    def _enter(self, block: BlockContext) -> None:
        self._evm.set_block_env(
            pyrevm.BlockEnv(
                number=block.number, timestamp=block.timestamp_seconds, coinbase=COINBASE, gas_limit=BLOCK_GAS_LIMIT
            )
        )

    def _execute(self, message: EngineMessage) -> ExecutionOutcome:
        try:
            if message.to is None:
                created = self._evm.deploy(message.sender, message.data, message.value, message.gas).lower()
                return self._outcome(Result.SUCCESS, b"", created=created)
            output = self._evm.message_call(
                caller=message.sender, to=message.to, calldata=message.data, value=message.value, gas=message.gas
            )
            return self._outcome(Result.SUCCESS, output)
        except RuntimeError as error:
            if self._evm.result is None:
                raise  # refused before it ran: the chain should have checked
            text = str(error)
            found = _OUTPUT.search(text)
            if self._evm.result.is_halt:
                return self._outcome(Result.HALTED, b"", reason=_halt(self._evm.result.reason))
            return self._outcome(Result.REVERTED, bytes.fromhex(found[1]) if found else b"")

    def _outcome(
        self, result: Result, output: bytes, *, created: str | None = None, reason: str = ""
    ) -> ExecutionOutcome:
        executed = self._evm.result
        if executed is None:  # pragma: no cover - every execution leaves a result
            raise RuntimeError("revm left no result")
        logs = tuple(_log(log) for log in executed.logs) if result is Result.SUCCESS else ()
        return ExecutionOutcome(result, output, executed.gas_used, executed.gas_refunded, logs, created, reason)

    def _written(self) -> tuple[dict[str, EngineAccount], dict[tuple[str, int], int]]:
        """Accounts and slots that the open checkpoint changed, as they are now."""
        text = self._evm.journal_str
        journal = text[text.rindex(", journal: [") : text.rindex("], spec: ")]
        slots = {
            (address, int(slot)): self._evm.storage(address, int(slot))
            for address, slot in _WRITTEN_SLOT.findall(journal)
        }
        return dict(self._changed_accounts(journal)), slots

    def _changed_accounts(self, journal: str) -> Iterator[tuple[str, EngineAccount]]:
        for address in dict.fromkeys(_CHANGED_ACCOUNT.findall(journal)):
            info = self._evm.basic(address)
            code = self.account(address).code or _without_padding(self._evm.get_code(address) or b"", info.code_hash)
            yield address, EngineAccount(info.balance, info.nonce, code)


def _without_padding(code: bytes, code_hash: bytes | None) -> bytes:
    """Bare code, whose hash that is: revm keeps zeros behind it, so that it cannot be run past its end."""
    padded = code_hash is not None and keccak256(code) != bytes(code_hash)
    return code[:-_CODE_PADDING_BYTES] if padded else code


def _new_evm(chain_id: int) -> pyrevm.EVM:
    return pyrevm.EVM(env=pyrevm.Env(cfg=pyrevm.CfgEnv(chain_id=chain_id)), gas_limit=BLOCK_GAS_LIMIT, spec_id=_SPEC)


def _account_info(account: EngineAccount) -> pyrevm.AccountInfo:
    return pyrevm.AccountInfo(
        balance=account.balance,  # type: ignore[call-arg]  # the wheel takes it, its type stub does not know it
        nonce=account.nonce,
        code=account.code or None,
    )


def _insert_slot(evm: pyrevm.EVM, address: str, slot: int, value: int) -> None:
    # Inserting also loads the account; taking the checkpoint back unloads it and leaves the slot in the database.
    start = evm.snapshot()
    evm.insert_account_storage(address, slot, value)
    evm.revert(start)


def _log(log: pyrevm.Log) -> EngineLog:
    return EngineLog(log.address.lower(), tuple(topic.lower() for topic in log.topics), bytes(log.data[1]))


def _halt(reason: str) -> str:
    return "out of gas" if "OutOfGas" in reason else _HALTS.get(reason, reason)
