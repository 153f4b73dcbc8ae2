"""Secrets that do not show themselves, and keys in their text form (contract 3.1, 4.3, 6; security A-26).

A ring is written as `id:hex` lines; the first key is current (it encrypts and signs), the others still open and verify
what they once made. What this module does not do: read a file, an environment or a random source.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

from tollkeeper.core.evm.encoding import SECP256K1_ORDER
from tollkeeper.core.keys.sealing import KeyRing

if TYPE_CHECKING:
    from collections.abc import Collection

T = TypeVar("T")

FEE_PAYERS: Final = 2
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_HEX_KEY: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{64})", re.ASCII)
_SEPARATORS: Final = re.compile(r"[\s,]+")
_COMMENT: Final = re.compile(r"#[^\n]*")


class Secret(Generic[T]):
    """A value that no repr, log line, traceback or pickle shows; `reveal` hands it to the code that needs it."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """The value itself."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


def parse_key_ring(text: str) -> KeyRing:
    """The ring in `text`: `id:64 hex digits` apart by line ends, blanks or commas; `#` begins a comment.

    Raises: ValueError saying what is wrong, never quoting the text.
    """
    keys: dict[str, bytes] = {}
    for position, entry in enumerate(_words(text), start=1):
        key_id, colon, digits = entry.partition(":")
        match = _HEX_KEY.fullmatch(digits)
        if not colon or _ID.fullmatch(key_id) is None or match is None:
            raise ValueError(f"entry {position} is not an id, a colon and 64 hex digits")
        if key_id in keys:
            raise ValueError(f"entry {position} repeats an id")
        keys[key_id] = bytes.fromhex(match[1])
    return KeyRing(next(iter(keys)), keys)


def parse_private_key(text: str) -> Secret[bytes]:
    """The secp256k1 private key in `text`: 64 hex digits; `#` begins a comment.

    Raises: ValueError saying what is wrong, never quoting the text.
    """
    words = _words(text)
    match = _HEX_KEY.fullmatch(words[0])
    if len(words) > 1 or match is None or not 0 < int(match[1], 16) < SECP256K1_ORDER:
        raise ValueError("it is not one private key of 64 hex digits")
    return Secret(bytes.fromhex(match[1]))


def parse_private_keys(text: str) -> tuple[Secret[bytes], ...]:
    """The secp256k1 private keys in `text`, separated by white space or commas; at least one.

    Raises: ValueError, never quoting the text, also where a key is there twice.
    """
    keys = tuple(parse_private_key(word) for word in _words(text))
    if len({key.reveal() for key in keys}) != len(keys):
        raise ValueError("a key is there twice")
    return keys


def fee_payer_seeds(signer_key: bytes) -> tuple[bytes, ...]:
    """The Ed25519 seeds of the hub's fee payers on Solana, which follow from its signing key (RFC 2104, SHA-256).

    One secret is kept and backed up for all families. Several, because transactions of one fee payer are executed one
    after the other.
    """
    return tuple(
        hmac.digest(signer_key, f"tollkeeper fee payer {number} on Solana".encode(), hashlib.sha256)
        for number in range(1, FEE_PAYERS + 1)
    )


def key_line(key_id: str, key: bytes) -> str:
    """The line of one key, as `parse_key_ring` reads it."""
    return f"{key_id}:{key.hex()}\n"


def without_keys(text: str, key_ids: Collection[str]) -> str:
    """A ring's text without these keys; its comments and all else stay as they are."""
    entry = re.compile(
        rf"(?<![A-Za-z0-9_-])(?:{'|'.join(map(re.escape, key_ids))}):(?:0x)?[0-9a-fA-F]{{64}}(?![0-9a-fA-F])"
    )

    def line_without(line: str) -> str:
        keys, mark, comment = line.partition("#")
        left = entry.sub("", keys)
        return "" if left != keys and not left.strip(", \t\r\n") and not mark else left + mark + comment

    return "".join(map(line_without, text.splitlines(keepends=True)))


def _words(text: str) -> list[str]:
    words = [word for word in _SEPARATORS.split(_COMMENT.sub("", text)) if word]
    if not words:
        raise ValueError("it holds no key")
    return words
