"""Solana transactions as bytes: compact-u16, legacy and version 0 messages, signatures (specification 2.3).

Strict: one spelling per value, every index inside its list, no account twice, nothing after the end. What a validator
would refuse to read is refused here; what a transaction may do is decided in `core.solana`.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from functools import lru_cache
from typing import Final

import msgspec

from tollkeeper.core.solana.ed25519 import SIGNATURE_SIZE_BYTES

TRANSACTION_SIZE_BYTES: Final = 1232  # what fits into one packet; no node takes a larger one
_KEY_SIZE_BYTES: Final = 32
_KEY: Final = f"{_KEY_SIZE_BYTES}s"
_SIGNATURE: Final = f"{SIGNATURE_SIZE_BYTES}s"
_VERSION_BIT: Final = 0x80
NO_SIGNATURE: Final = bytes(SIGNATURE_SIZE_BYTES)


class MalformedTransaction(ValueError):  # noqa: N818 - says what is wrong with the bytes
    """These bytes are no transaction in its one spelling."""


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """`program` and each of `accounts` are positions in the message's account keys."""

    program: int
    accounts: bytes
    data: bytes


class Message(msgspec.Struct, frozen=True, gc=False):
    """Message of a transaction; the signers sign `raw`. `version` is None for a legacy message.

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


class SolanaTransaction(msgspec.Struct, frozen=True, gc=False):
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


def encode_compact(value: int) -> bytes:
    """A compact-u16. Raises: ValueError outside 0 to 65535."""
    if not 0 <= value <= 0xFFFF:
        raise ValueError("a compact-u16 is 0 to 65535")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@lru_cache(maxsize=256)
def decode_transaction(text: str) -> SolanaTransaction:
    """The transaction in a payment's `transaction`: standard base64, padded. Raises: MalformedTransaction.

    The last ones are remembered, because each rule, and each step of a settlement, reads it anew.
    """
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not raw or not text.endswith(_last_quantum(raw)):
        raise MalformedTransaction("the transaction is not standard base64")
    return read_transaction(raw)


def _last_quantum(raw: bytes) -> str:
    """The end of the one spelling of these bytes: only there can bits be spelt that are not theirs."""
    return binascii.b2a_base64(raw[len(raw) - (len(raw) % 3 or 3) :], newline=False).decode()


def read_transaction(raw: bytes) -> SolanaTransaction:
    """The transaction that these bytes are. Raises: MalformedTransaction."""
    if len(raw) > TRANSACTION_SIZE_BYTES:
        raise MalformedTransaction(f"a transaction has at most {TRANSACTION_SIZE_BYTES} bytes")
    try:
        count, start = _compact(raw, 0)
    except IndexError:
        raise _ends_early() from None
    end = start + count * SIGNATURE_SIZE_BYTES
    message = read_message(raw[end:])
    if count != message.required_signatures:
        raise MalformedTransaction("the number of signatures is not the number of signers")
    return SolanaTransaction(struct.unpack_from(_SIGNATURE * count, raw, start), message)


def read_message(raw: bytes) -> Message:
    """The message that these bytes are. Raises: MalformedTransaction."""
    try:
        message, end = _message(raw)
    except IndexError:
        raise _ends_early() from None
    if end > len(raw):
        raise _ends_early()
    if end < len(raw):
        raise MalformedTransaction("bytes after the transaction")
    _check_positions(message)
    return message


# These read at a place and say where they ended. A part that is cut off is noticed by what comes behind it: by an
# IndexError there, or by an end behind the bytes' own.


def _message(raw: bytes) -> tuple[Message, int]:
    at, version = 0, None
    if raw[0] & _VERSION_BIT:
        at, version = 1, raw[0] & ~_VERSION_BIT
        if version != 0:
            raise MalformedTransaction(f"version {version} of transactions is not known")
    required_signatures, readonly_signed, readonly_unsigned = raw[at], raw[at + 1], raw[at + 2]
    count, at = _compact(raw, at + 3)
    if at + (count + 1) * _KEY_SIZE_BYTES > len(raw):  # before so many are made room for
        raise _ends_early()
    *accounts, blockhash = struct.unpack_from(_KEY * (count + 1), raw, at)
    at += (count + 1) * _KEY_SIZE_BYTES
    instructions, at = _instructions(raw, at)
    lookup_tables = 0
    if version is not None:
        lookup_tables, at = _skip_lookup_tables(raw, at)
    message = Message(
        raw,
        version,
        required_signatures,
        readonly_signed,
        readonly_unsigned,
        tuple(accounts),
        blockhash,
        instructions,
        lookup_tables,
    )
    return message, at


def _instructions(raw: bytes, at: int) -> tuple[tuple[Instruction, ...], int]:
    found = []
    left, at = _compact(raw, at)
    while left:
        program, count, accounts = raw[at], raw[at + 1], at + 2
        if count >= 0x80:
            count, accounts = _compact(raw, at + 1)
        behind = accounts + count
        size, data = raw[behind], behind + 1
        if size >= 0x80:
            size, data = _compact(raw, behind)
        at = data + size
        found.append(Instruction(program, raw[accounts:behind], raw[data:at]))
        left -= 1
    return tuple(found), at


def _skip_lookup_tables(raw: bytes, at: int) -> tuple[int, int]:
    """Read over the address table lookups: what uses any is refused, so their content does not matter."""
    tables, at = _compact(raw, at)
    for _ in range(tables):
        writable, at = _compact(raw, at + _KEY_SIZE_BYTES)
        readonly, at = _compact(raw, at + writable)
        at += readonly
    return tables, at


def _compact(raw: bytes, at: int) -> tuple[int, int]:
    """A compact-u16: seven bits a byte, lowest first, three bytes at most, in its shortest form."""
    first = raw[at]
    if first < 0x80:
        return first, at + 1
    last = raw[at + 1]
    value, end = (first & 0x7F) | (last & 0x7F) << 7, at + 2
    if last >= 0x80:
        last = raw[at + 2]
        value, end = value | last << 14, at + 3
    if last == 0 or value > 0xFFFF:
        raise MalformedTransaction("a length is not in its shortest form")
    return value, end


def _ends_early() -> MalformedTransaction:
    return MalformedTransaction("the transaction ends early")


def _check_positions(message: Message) -> None:
    accounts = len(message.accounts)
    if not message.readonly_signed < message.required_signatures:
        raise MalformedTransaction("no account pays the fee")
    if message.required_signatures + message.readonly_unsigned > accounts:
        raise MalformedTransaction("more signers and readonly accounts than accounts")
    if len(set(message.accounts)) != accounts:
        raise MalformedTransaction("an account is named twice")
    if message.lookup_tables:  # positions may point behind the message's own accounts
        return
    for instruction in message.instructions:
        used = instruction.accounts
        if not 0 < instruction.program < accounts or (used and max(used) >= accounts):
            raise MalformedTransaction("an instruction names an account that is not there")
