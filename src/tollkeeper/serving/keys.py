"""Keys that are made from the settings' keys, so that none has two uses."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tollkeeper.core.sealing import KeyRing

_TOKEN_KEY_PURPOSE: Final = b"tollkeeper credit tokens"


def token_key(key: bytes) -> bytes:
    """What makes credit tokens and links while `key` seals."""
    return hmac.digest(key, _TOKEN_KEY_PURPOSE, hashlib.sha256)


def token_keys(ring: KeyRing) -> tuple[bytes, ...]:
    """Keys for credit tokens, the current one first: made from the ring's, so that no key has two uses."""
    names = (ring.current, *(name for name in ring.keys if name != ring.current))
    return tuple(token_key(ring.keys[name]) for name in names)
