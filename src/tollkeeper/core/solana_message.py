"""Solana transactions as bytes: compact-u16, legacy and version 0 messages, signatures (specification 2.3).

Strict: one spelling per value, every index inside its list, no account twice, nothing after the end. What a validator
would refuse to read is refused here; what a transaction may do is decided in `core.solana`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

from tollkeeper.core.ed25519 import SIGNATURE_SIZE_BYTES

TRANSACTION_SIZE_BYTES: Final = 1232  # what fits into one packet; no node takes a larger one
_KEY_SIZE_BYTES: Final = 32
_VERSION_BIT: Final = 0x80
NO_SIGNATURE: Final = bytes(SIGNATURE_SIZE_BYTES)


class MalformedTransaction(ValueError):  # noqa: N818 - says what is wrong with the bytes
    """These bytes are no transaction in its one spelling."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`program` and each of `accounts` are positions in the message's account keys."""

    program: int
    accounts: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """What the signers sign: `raw`. `version` is None for a legacy message.

    The first `required_signatures` accounts sign; the first of them pays the fee.
    """

    raw: bytes
    version: int | None
    required_signatures: int
    readonly_signed: int
    readonly_unsigned: int
    accounts: tuple[bytes, ...]
    recent_blockhash: bytes
    instructions: tuple[Instruction, ...]
    lookup_tables: int

    @property
    def hash(self) -> str:
        """SHA-256 of the message in hex: the payment's identity."""
        return hashlib.sha256(self.raw).hexdigest()


@dataclass(frozen=True, slots=True)
class SolanaTransaction:
    """Signatures in the order of the signing accounts, and the message."""

    signatures: tuple[bytes, ...]
    message: Message

    def encode(self) -> bytes:
        """The bytes that go to a node."""
        return encode_compact(len(self.signatures)) + b"".join(self.signatures) + self.message.raw

    def with_signature(self, position: int, signature: bytes) -> SolanaTransaction:
        """The same transaction, signed by the account at `position`."""
        signatures = list(self.signatures)
        signatures[position] = signature
        return SolanaTransaction(tuple(signatures), self.message)


class _Reader:
    """Takes bytes from the front. Raises: MalformedTransaction where there are not enough."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            msg = "the transaction ends early"
            raise MalformedTransaction(msg)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def compact(self) -> int:
        """A compact-u16: seven bits a byte, lowest first, three bytes at most, in its shortest form."""
        first = self.byte()
        if first < 0x80:
            return first
        second = self.byte()
        value = (first & 0x7F) | (second & 0x7F) << 7
        last = second
        if second >= 0x80:
            last = self.byte()
            value |= last << 14
        if last == 0 or value > 0xFFFF:
            msg = "a length is not in its shortest form"
            raise MalformedTransaction(msg)
        return value

    @property
    def rest(self) -> bytes:
        return self._data[self._at :]

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)


def encode_compact(value: int) -> bytes:
    """A compact-u16. Raises: ValueError outside 0 to 65535."""
    if not 0 <= value <= 0xFFFF:
        msg = "a compact-u16 is 0 to 65535"
        raise ValueError(msg)
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_transaction(text: str) -> SolanaTransaction:
    """The transaction in a payment's `transaction`: standard base64, padded. Raises: MalformedTransaction."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not raw or base64.b64encode(raw).decode() != text:
        msg = "the transaction is not standard base64"
        raise MalformedTransaction(msg)
    return read_transaction(raw)


def read_transaction(raw: bytes) -> SolanaTransaction:
    """The transaction that these bytes are. Raises: MalformedTransaction."""
    if len(raw) > TRANSACTION_SIZE_BYTES:
        msg = f"a transaction has at most {TRANSACTION_SIZE_BYTES} bytes"
        raise MalformedTransaction(msg)
    reader = _Reader(raw)
    signatures = tuple(reader.take(SIGNATURE_SIZE_BYTES) for _ in range(reader.compact()))
    message = read_message(reader.rest)
    if len(signatures) != message.required_signatures:
        msg = "the number of signatures is not the number of signers"
        raise MalformedTransaction(msg)
    return SolanaTransaction(signatures, message)


def read_message(raw: bytes) -> Message:
    """The message that these bytes are. Raises: MalformedTransaction."""
    reader = _Reader(raw)
    first = reader.byte()
    version = None
    if first & _VERSION_BIT:
        version = first & ~_VERSION_BIT
        if version != 0:
            msg = f"version {version} of transactions is not known"
            raise MalformedTransaction(msg)
        first = reader.byte()
    readonly_signed, readonly_unsigned = reader.byte(), reader.byte()
    accounts = tuple(reader.take(_KEY_SIZE_BYTES) for _ in range(reader.compact()))
    blockhash = reader.take(_KEY_SIZE_BYTES)
    instructions = tuple(_instruction(reader) for _ in range(reader.compact()))
    lookup_tables = _skip_lookup_tables(reader) if version is not None else 0
    if not reader.is_at_end:
        msg = "bytes after the transaction"
        raise MalformedTransaction(msg)
    message = Message(
        raw, version, first, readonly_signed, readonly_unsigned, accounts, blockhash, instructions, lookup_tables
    )
    _check_positions(message)
    return message


def _instruction(reader: _Reader) -> Instruction:
    return Instruction(reader.byte(), reader.take(reader.compact()), reader.take(reader.compact()))


def _skip_lookup_tables(reader: _Reader) -> int:
    """Reads over the address table lookups: what uses any is refused, so their content does not matter."""
    count = reader.compact()
    for _ in range(count):
        reader.take(_KEY_SIZE_BYTES)
        reader.take(reader.compact())
        reader.take(reader.compact())
    return count


def _check_positions(message: Message) -> None:
    accounts = len(message.accounts)
    if not message.readonly_signed < message.required_signatures:
        msg = "no account pays the fee"
        raise MalformedTransaction(msg)
    if message.required_signatures + message.readonly_unsigned > accounts:
        msg = "more signers and readonly accounts than accounts"
        raise MalformedTransaction(msg)
    if len(set(message.accounts)) != accounts:
        msg = "an account is named twice"
        raise MalformedTransaction(msg)
    if message.lookup_tables:  # positions may point behind the message's own accounts
        return
    for instruction in message.instructions:
        if not 0 < instruction.program < accounts or max(instruction.accounts, default=0) >= accounts:
            msg = "an instruction names an account that is not there"
            raise MalformedTransaction(msg)
