"""Transactions byte by byte, for what no library spells: lengths, headers and positions that lie (A-27, A-30)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.core.solana_payments import encoded
from tollkeeper.core.solana.message import encode_compact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.core.x402.version1 import SolanaPayload

_OURS, _THIEF = 0, 1  # the signers of an honest payment, by their places
_NOTHING: Final = bytes(64)
_HEADERS: Final = ([0, 0, 4], [1, 1, 4], [2, 2, 4], [2, 3, 4], [3, 2, 4], [9, 1, 0], [2, 1, 7], [2, 1, 255])


def _stretched(size: int) -> Callable[[int], bytes]:
    """A compact-u16 of at least so many bytes, the last of which say nothing."""

    def spell(value: int) -> bytes:
        short = encode_compact(value)
        if len(short) >= size:
            return short
        return short[:-1] + bytes([short[-1] | 0x80]) + b"\x80" * (size - len(short) - 1) + b"\0"

    return spell


@dataclass
class _Message:
    """An honest payment's parts, and how each length in it is spelt."""

    version: bytes
    header: list[int]
    accounts: list[bytes]
    blockhash: bytes
    instructions: list[tuple[int, bytes, bytes]]
    tables: bytes = b"\0"
    behind: bytes = b""
    signatures: int = 2
    spelt: dict[str, Callable[[int], bytes]] = field(default_factory=dict)

    def length(self, of: str, value: int) -> bytes:
        return self.spelt.get(of, encode_compact)(value)

    def message(self) -> bytes:
        raw = self.version + bytes(self.header) + self.length("accounts", len(self.accounts)) + b"".join(self.accounts)
        raw += self.blockhash + self.length("instructions", len(self.instructions))
        for program, accounts, data in self.instructions:
            raw += bytes([program]) + self.length("an instruction's accounts", len(accounts)) + accounts
            raw += self.length("an instruction's data", len(data)) + data
        return raw + self.tables + self.behind

    def signed(self, sign: Callable[[bytes], bytes]) -> SolanaPayload:
        """By its payer, and by nobody else."""
        message = self.message()
        signatures = [sign(message) if place == _THIEF else _NOTHING for place in range(self.signatures)]
        return encoded(self.length("signatures", self.signatures) + b"".join(signatures) + message)


def _parts(honest: bytes) -> _Message:
    """Of a version 0 transaction whose lengths are all below 128."""
    at = 1 + 64 * honest[0] + 1
    header, count = list(honest[at : at + 3]), honest[at + 3]
    at += 4
    accounts = [honest[place : place + 32] for place in range(at, at + 32 * count, 32)]
    at += 32 * count
    blockhash, left = honest[at : at + 32], honest[at + 32]
    at += 33
    instructions = []
    for _ in range(left):
        program, used = honest[at], honest[at + 1]
        size = honest[at + 2 + used]
        data = at + 3 + used
        instructions.append((program, honest[at + 2 : at + 2 + used], honest[data : data + size]))
        at = data + size
    return _Message(b"\x80", header, accounts, blockhash, instructions)


def odd_bytes(honest: SolanaPayload, sign: Callable[[bytes], bytes]) -> Iterator[tuple[str, SolanaPayload]]:
    """Variations of an honest payment, each signed by its payer as it is."""
    raw = base64.b64decode(honest.transaction)

    def parts() -> _Message:
        return _parts(raw)

    assert parts().signed(sign) == honest
    for what in ("signatures", "accounts", "instructions", "an instruction's accounts", "an instruction's data"):
        for size in (2, 3):
            odd = parts()
            odd.spelt[what] = _stretched(size)
            yield f"length: of {what} in {size} bytes", odd.signed(sign)
    for name, tables in {
        "of no tables in 2 bytes": b"\x80\0",
        "of no tables in 3 bytes": b"\x80\x80\0",
        "of tables that are not there": b"\xff\xff\x03",
        "of tables left out": b"",
    }.items():
        odd = parts()
        odd.tables = tables
        yield f"length: {name}", odd.signed(sign)
    odd = parts()
    odd.spelt["accounts"] = lambda _count: b"\x88\x80\x04"
    yield "length: beyond 65535", odd.signed(sign)
    for header in _HEADERS:
        odd = parts()
        odd.header = header
        yield f"header: {header}", odd.signed(sign)
        odd.signatures = header[0]
        yield f"header: {header} with as many signatures", odd.signed(sign)
    for count in (0, 1, 3):
        odd = parts()
        odd.signatures = count
        yield f"header: {count} signatures", odd.signed(sign)
    for place in range(len(parts().accounts)):
        odd = parts()
        odd.accounts.append(odd.accounts[place])
        yield f"account named twice: {place}", odd.signed(sign)
    yield from _positions(parts, sign)
    for name, version, behind in (("of version 0 without it", b"", b""), ("of version 0 in a legacy one", b"", b"\0")):
        odd = parts()
        odd.version, odd.behind = version, behind
        yield f"end: {name}", odd.signed(sign)
    odd = parts()
    odd.behind = bytes(800)
    yield "end: far behind", odd.signed(sign)


def _positions(parts: Callable[[], _Message], sign: Callable[[bytes], bytes]) -> Iterator[tuple[str, SolanaPayload]]:
    there = len(parts().accounts)
    for place in (there, 255):
        for moved in range(4):
            odd = parts()
            program, accounts, data = odd.instructions[2]
            odd.instructions[2] = program, accounts[:moved] + bytes([place]) + accounts[moved + 1 :], data
            yield f"position: account {moved} of the transfer at {place}", odd.signed(sign)
        odd = parts()
        odd.instructions.append((place, b"", b"x"))
        yield f"position: program at {place}", odd.signed(sign)
    odd = parts()
    odd.instructions.append((_OURS, b"", b"x"))
    yield "position: we are the program", odd.signed(sign)
