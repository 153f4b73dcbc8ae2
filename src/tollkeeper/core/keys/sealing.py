"""Encryption at rest: AES-256-GCM under a ring of keys, bound to its place (contract 3.1, security A-56).

The additional data is table, row and column, so that a value that was copied to another row does not open.
Random nonces are passed in. `Sealing` is one process's: a ring
of keys, and a source of nonces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tollkeeper.core.api.errors import ApiError, Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NONCE_SIZE_BYTES: Final = 12
KEY_SIZE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Named 32-byte keys; `current` seals, any opens."""

    current: str
    keys: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a ring that could not work. Raises: ValueError."""
        if self.current not in self.keys:
            raise ValueError(f"the key ring has no key {self.current!r}")
        if any(len(key) != KEY_SIZE_BYTES or not 1 <= len(name) <= 64 for name, key in self.keys.items()):
            raise ValueError(f"keys have {KEY_SIZE_BYTES} bytes and names of 1 to 64 characters")


class SealError(ApiError):
    """A sealed value does not open: another place, another key, or changed bytes. Answered as a 503: fail closed."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


def place(table: str, row: str | int, column: str) -> bytes:
    """The additional data that binds a value to where it is stored."""
    return f"{table}|{row}|{column}".encode()


def sealed_prefix(name: str) -> bytes:
    """Return how every value begins that was sealed under the key of this name, and no other."""
    return bytes([len(name.encode())]) + name.encode()


def key_name(sealed: bytes) -> str:
    """The name of the key that sealed a value."""
    return sealed[1 : 1 + (sealed[0] if sealed else 0)].decode("utf-8", "replace")


def seal(ring: KeyRing, plaintext: bytes, where: bytes, nonce: bytes) -> bytes:
    """The value to store: key name, nonce, ciphertext. `nonce` is 12 fresh random bytes."""
    return sealed_prefix(ring.current) + nonce + AESGCM(ring.keys[ring.current]).encrypt(nonce, plaintext, where)


def unseal(ring: KeyRing, sealed: bytes, where: bytes) -> bytes:
    """The plaintext. Raises: SealError."""
    name_end = 1 + (sealed[0] if sealed else 0)
    key = ring.keys.get(key_name(sealed))
    nonce = sealed[name_end : name_end + NONCE_SIZE_BYTES]
    if key is None or len(nonce) != NONCE_SIZE_BYTES:
        raise SealError("a stored value names a key that is not in the ring")
    try:
        return AESGCM(key).decrypt(nonce, sealed[name_end + NONCE_SIZE_BYTES :], where)
    except InvalidTag as error:
        raise SealError("a stored value does not open at its place") from error


class Sealing:
    """`ring`: its current key seals, each of its keys opens."""

    def __init__(self, ring: KeyRing, random_bytes: Callable[[int], bytes]) -> None:
        self.ring = ring
        self._random = random_bytes

    def seal(self, plaintext: bytes, where: bytes) -> bytes:
        """The value to store at that place, under the current key."""
        return seal(self.ring, plaintext, where, self._random(NONCE_SIZE_BYTES))

    def unseal(self, sealed: bytes, where: bytes) -> bytes:
        """The plaintext of a stored value. Raises: SealError."""
        return unseal(self.ring, sealed, where)
