"""Sealing of one process's stores: a ring of keys, and a source of nonces (contract 3.1).

This module does not encrypt (`core.keys.sealing` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.core.keys import sealing
from tollkeeper.core.keys.sealing import NONCE_SIZE_BYTES, KeyRing

if TYPE_CHECKING:
    from collections.abc import Callable


class Sealing:
    """`ring`: its current key seals, each of its keys opens."""

    def __init__(self, ring: KeyRing, random_bytes: Callable[[int], bytes]) -> None:
        self.ring = ring
        self._random = random_bytes

    def seal(self, plaintext: bytes, where: bytes) -> bytes:
        """The value to store at that place, under the current key."""
        return sealing.seal(self.ring, plaintext, where, self._random(NONCE_SIZE_BYTES))

    def unseal(self, sealed: bytes, where: bytes) -> bytes:
        """The plaintext of a stored value. Raises: SealError."""
        return sealing.unseal(self.ring, sealed, where)
